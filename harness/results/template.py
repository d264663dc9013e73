"""Style and script of the HTML page. Colours are Okabe and Ito's, which most colour-blind eyes tell apart."""

from __future__ import annotations

HEAD = "<meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>"

STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --panel: #f4f6f8; --ink: #16191d; --muted: #59636e; --rule: #d5dbe1;
  --blue: #0072b2; --orange: #d55e00; --green: #009e73; --purple: #b0538a; --yellow: #b88600; --sky: #3f97cc;
  --red: #8f2d56; --on-mark: #ffffff; --warn: #ffe08a; --on-warn: #3b2c00;
  --ramp0: #440154; --ramp1: #414487; --ramp2: #2a788e; --ramp3: #1f9d7c; --ramp4: #5fa83a; --ramp5: #b58a00; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14171a; --panel: #1e2328; --ink: #e9ecef; --muted: #a3adb7; --rule: #363d45;
  --blue: #56b4e9; --orange: #ff9147; --green: #2fc79a; --purple: #e39cc4; --yellow: #f0c242; --sky: #9ad5f5;
  --red: #ef7ba5; --on-mark: #101316; --warn: #f0c242; --on-warn: #241b00;
  --ramp0: #a78bd8; --ramp1: #7f9bea; --ramp2: #4fb6d3; --ramp3: #3fd0a2; --ramp4: #a5dc55; --ramp5: #fde725; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 20px 60px; }
section + section { margin-top: 48px; padding-top: 32px; border-top: 2px solid var(--rule); }
h1 { font-size: 30px; line-height: 1.2; margin: 8px 0 2px; }
h2 { font-size: 18px; margin: 32px 0 8px; }
.under { color: var(--muted); margin: 0 0 16px; }
.badges { margin: 0; display: flex; gap: 8px; flex-wrap: wrap; }
.badge { display: inline-block; padding: 1px 10px; border-radius: 4px; font-size: 13px; font-weight: 700; }
.valid { background: var(--green); color: var(--on-mark); }
.invalid { background: var(--orange); color: var(--on-mark); }
.simulated { background: var(--warn); color: var(--on-warn); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(205px, 1fr)); gap: 12px; margin: 0; }
.tile { background: var(--panel); border: 1px solid var(--rule); border-radius: 6px; padding: 10px 14px; }
.tile dt { color: var(--muted); font-size: 13px; }
.tile dt small { background: var(--warn); color: var(--on-warn); border-radius: 3px; padding: 0 5px; margin-left: 6px;
  font-weight: 700; font-size: 10px; }
.tile dd { margin: 2px 0; font-size: 22px; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile p { margin: 0; font-size: 12.5px; color: var(--muted); }
.doubts { list-style: none; margin: 0; padding: 0; }
.doubts li { border-left: 4px solid var(--yellow); background: var(--panel); padding: 6px 12px; margin: 4px 0; }
.doubts li.void { border-left-color: var(--orange); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 16px; margin-top: 24px; }
.plot { height: 380px; border: 1px solid var(--rule); border-radius: 6px; overflow: hidden; }
.plot.wide { grid-column: 1 / -1; }
.plot p { padding: 16px; color: var(--muted); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: 5px 10px; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--muted); font-weight: 600; font-size: 12.5px; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.setting td:last-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.good { color: var(--green); font-weight: 700; } .bad { color: var(--orange); font-weight: 700; }
pre { background: var(--panel); border: 1px solid var(--rule); border-radius: 6px; padding: 12px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
details { margin-top: 20px; } summary { cursor: pointer; font-weight: 600; }
@media (max-width: 560px) { .plots { grid-template-columns: 1fr; } h1 { font-size: 24px; } }
"""

SCRIPT = """
'use strict';
const places = [...document.querySelectorAll('.plot')].map(place =>
  ({place, figure: place.querySelector('script').textContent}));
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const themed = text => JSON.parse(text, (key, value) => {
  const found = typeof value === 'string' && /^var\\((--[a-z0-9]+)\\)$/.exec(value);
  return found ? colour(found[1]) : value;
});
function say(text) {
  for (const {place} of places) {
    const line = document.createElement('p');
    line.textContent = text;
    place.append(line);
  }
}
const axisOf = (base, own) => ({...base, ...own, title: {...base.title, ...own.title}});
function draw() {
  const axis = {gridcolor: colour('--rule'), linecolor: colour('--rule'), zerolinecolor: colour('--rule'),
    title: {standoff: 12}};
  for (const {place, figure} of places) {
    const {data, layout} = themed(figure);
    const base = {paper_bgcolor: colour('--paper'), plot_bgcolor: colour('--paper'),
      font: {color: colour('--ink'), family: 'system-ui, sans-serif', size: 13},
      margin: {l: 64, r: 20, t: 48, b: 60}, hovermode: 'closest', bargap: 0.25};
    const legend = {bgcolor: 'rgba(0,0,0,0)', ...layout.legend};
    Plotly.react(place, data, {...base, ...layout, legend,
      xaxis: axisOf(axis, layout.xaxis), yaxis: axisOf(axis, layout.yaxis)},
      {displayModeBar: false, responsive: true});
  }
}
async function start() {
  if (typeof DecompressionStream === 'undefined') {
    say('This browser is too old to draw the plots. The tables below hold every figure.');
    return;
  }
  const packed = Uint8Array.from(atob(document.getElementById('engine').textContent), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  const script = document.createElement('script');
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  draw();
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
}
if (places.length) start().catch(error =>
  say('The plots could not be drawn (' + error + '). The tables below hold every figure.'));
"""
