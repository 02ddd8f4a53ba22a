"""Prompts of the speculation benchmark. Answers to REPEATING repeat much of their prompt, to FRESH little.

Answers recorded from SmolLM2-135M-Instruct stand in speculation_answers.json, as the model gave them.
"""

from __future__ import annotations

_FUNCTION = '''\
def average_of_columns(rows):
    """Mean of each column of a table that is a list of rows."""
    if not rows:
        return []
    n_columns = len(rows[0])
    totals = [0.0] * n_columns
    for row in rows:
        if len(row) != n_columns:
            raise ValueError("all rows must have the same length")
        for index, value in enumerate(row):
            totals[index] += value
    return [totl / len(rows) for total in totals]
'''

_CLASS = '''\
class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        return self.balance
'''

_STORY = """\
On Monday morning Clara walked down to the harbour to look at the boats. The red boat belonged to her \
uncle, who had gone out to sea every day for thirty years. The harbour was quiet, and only two fishermen \
were mending their nets. Clara asked them whether they had seen her uncle. They said that he had left \
before sunrise, and that the weather would stay calm until the evening. Clara thanked them and sat down \
on the wall to wait."""

_MINUTES = """\
Minutes of the meeting of 4 May. Present: Ana Silva, Tom Becker, Li Wei, Priya Nair. The group decided \
to move the release of version 2.4 to the end of June. Tom Becker will write the new installation guide. \
Li Wei will test the update on all supported devices. Priya Nair will answer the open questions of the \
customers. Ana Silva will prepare the next meeting, which takes place on 18 May."""

_LETTER = """\
Dear Mrs Novak, thank you for your order of 12 wooden chairs and 3 oak tables. The chairs left our \
workshop this morning and should arrive on Thursday. The tables need another week, because the wood has \
to dry before we can oil it. We are sorry for the delay and will send the tables free of charge. Kind \
regards, Peter Holm"""

_CONFIG = """\
{
  "name": "weather-station",
  "interval_seconds": 60,
  "sensors": [
    {"id": "t1", "kind": "temperature", "unit": "celsius", "enabled": true},
    {"id": "h1", "kind": "humidity", "unit": "percent", "enabled": true},
    {"id": "p1", "kind": "pressure", "unit": "hectopascal", "enabled": false}
  ],
  "upload": {"host": "localhost", "port": 8080, "retries": 3}
}"""

REPEATING = {
    "fix a typo": "There is a typo in the last line of this function. Write the corrected function:\n\n"
    f"```python\n{_FUNCTION}```",
    "rename a method": "Rename the method withdraw to take_out and write the whole class again:\n\n"
    f"```python\n{_CLASS}```",
    "change a word": f"Repeat this text word for word, but write Sarah instead of Clara:\n\n{_STORY}",
    "make a list": f"Copy each sentence of this text as an item of a numbered list:\n\n{_MINUTES}",
    "correct a letter": f"Proofread this letter and write it again in full:\n\n{_LETTER}",
    "edit a config": f"Repeat this JSON file exactly, with port 9090 instead of 8080:\n\n{_CONFIG}",
}

FRESH = {
    "explain": "Why is the sky blue?",
    "invent": "Write a short poem about a lighthouse in winter.",
    "advise": "How can I learn to play the piano as an adult?",
}
