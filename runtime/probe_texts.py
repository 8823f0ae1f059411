"""Texts that a profile is measured on: what the model itself says after each of them shows what drafts are worth."""

PROBE_TEXT = """\
The old lighthouse keeper walked down to the harbour every morning. "It is not the wind that worries
me," he said to the fishermen, "it is what comes after it." In 1987 the town had two thousand
people; today there are fewer than nine hundred, and most of them are old. The school has closed,
the baker has moved to the city, and the boats that used to fill the bay are gone. Still, when the
evening light falls on the water, visitors often say that they have never seen a more beautiful
place. The keeper agrees. He has written down the weather of every day for forty years, and he likes
to read from his notebooks to anyone who has the time to listen. Here is what he read to us last
summer:"""

_QUESTIONS = """\
Question: What is the capital of France, and which river runs through it?
Answer: Paris is the capital of France. The river Seine runs through it.

Question: A baker sells 12 loaves in the morning and twice as many in the afternoon. How many does he sell in a day?
Answer:"""
_CODE = """\
def mean(values):
    \"\"\"Return the arithmetic mean of a list of numbers.\"\"\"
    return sum(values) / len(values)


def variance(values):
    \"\"\"Return the variance of a list of numbers.\"\"\"
"""
_TRANSLATION = """\
Here are sentences in German and in English.
German: Der Zug fährt um neun Uhr ab. English: The train leaves at nine o'clock.
German: Meine Schwester wohnt in einem kleinen Haus am See. English:"""
PROBE_TEXTS = (PROBE_TEXT, _QUESTIONS, _CODE, _TRANSLATION)
