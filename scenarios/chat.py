"""Plain chat without retrieval: short questions and short texts to summarise, about 50 tokens in, 150 out.

locust -f scenarios/chat.py --host http://node:8080 --headless -u 32 -r 32 -t 2m
"""

from harness.load import RagUser, task


class Chat(RagUser):
    questions = "chat_prompts.jsonl"
    output_tokens = 150

    @task
    def prompt(self):
        self.chat(self.next_question())
