"""Wordings of the arithmetic task: question and the expression that solves it, over the same slots.

Slots: {a} {b} {c} numbers, {name} a person, {item} things that are counted.
"""

NAMES = ("Ada", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo", "Iris", "Jonas", "Kate", "Liam",
         "Maria", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tina", "Victor")  # fmt: skip

ITEMS = ("apples", "balls", "books", "bottles", "candles", "cards", "coins", "cups", "eggs", "flowers", "keys",
         "lemons", "marbles", "nails", "pencils", "plates", "shells", "stamps", "stickers", "tickets")  # fmt: skip

TINY = (
    ("{a} + {b} = ?", "{a} + {b}"),
    ("Add {a} and {b}.", "{a} + {b}"),
    ("What is {a} plus {b}?", "{a} + {b}"),
    ("{a} - {b} = ?", "{a} - {b}"),
    ("Take {b} from {a}.", "{a} - {b}"),
    ("What is {a} minus {b}?", "{a} - {b}"),
    ("{a} * {b} = ?", "{a} * {b}"),
    ("Multiply {a} by {b}.", "{a} * {b}"),
    ("What is {a} times {b}?", "{a} * {b}"),
)

TWO_OPERANDS = (
    ("{name} has {a} {item} and buys {b} more. How many {item} does {name} have now?", "{a} + {b}"),
    ("{name} found {a} {item} today and {b} yesterday. How many in total?", "{a} + {b}"),
    ("A shop sold {a} {item} on Monday and {b} on Tuesday. How many altogether?", "{a} + {b}"),
    ("One bag holds {a} {item}, another holds {b}. How many {item} are there?", "{a} + {b}"),
    ("{name} had {a} {item} and then got {b} from a friend. How many now?", "{a} + {b}"),
    ("{name} had {a} {item} and gave away {b}. How many are left?", "{a} - {b}"),
    ("A box held {a} {item}. {name} took out {b}. How many remain?", "{a} - {b}"),
    ("{name} wants {a} {item} and has {b}. How many are missing?", "{a} - {b}"),
    ("{b} of {a} {item} are broken. How many are whole?", "{a} - {b}"),
    ("A shop had {a} {item} and sold {b}. How many are still there?", "{a} - {b}"),
    ("{a} boxes hold {b} {item} each. How many {item} in all?", "{a} * {b}"),
    ("{name} fills {a} bags with {b} {item} each. How many {item} is that?", "{a} * {b}"),
    ("There are {a} rows of {b} {item}. How many {item} are there?", "{a} * {b}"),
    ("One of the {item} costs {b} coins. What do {a} of them cost?", "{a} * {b}"),
    ("{name} makes {b} {item} a day. How many in {a} days?", "{a} * {b}"),
)

THREE_OPERANDS = (
    ("{name} had {a} {item}, got {b} more and then {c} more. How many now?", "{a} + {b} + {c}"),
    ("Three jars hold {a}, {b} and {c} {item}. How many together?", "{a} + {b} + {c}"),
    ("A shop had {a} {item}, got {b} more and sold {c}. How many are left?", "{a} + {b} - {c}"),
    ("{name} found {a} {item}, lost {c} and found {b} more. How many now?", "{a} - {c} + {b}"),
    ("{name} buys {a} packs of {b} {item} and already has {c}. How many in all?", "{a} * {b} + {c}"),
    ("There are {a} rows of {b} {item} and {c} extra. How many {item}?", "{a} * {b} + {c}"),
    ("{name} fills {a} bags with {b} {item} each and gives away {c}. How many are left?", "{a} * {b} - {c}"),
    ("{a} boxes hold {b} {item} each; {c} are broken. How many are whole?", "{a} * {b} - {c}"),
    ("Each of {c} boxes holds {a} red and {b} blue {item}. How many in all?", "({a} + {b}) * {c}"),
    ("{name} makes {a} {item} in the morning and {b} at night. How many in {c} days?", "({a} + {b}) * {c}"),
)
