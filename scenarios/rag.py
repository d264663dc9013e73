"""The standard RAG request: a prompt of 1,500 tokens, passages included, and an answer of 100.

locust -f scenarios/rag.py --host http://node:8080 --headless -u 32 -r 32 -t 2m
"""

from harness.load import RagUser, task


class Rag(RagUser):
    input_tokens = 1500
    output_tokens = 100

    @task
    def question(self):
        self.ask(self.next_question())
