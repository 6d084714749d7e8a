#!/usr/bin/env python3
"""Writes arithmetic word problems in GSM8K's form, for the quickstart's base model and the task word_problems.

Every problem is a template with drawn names, things, places and numbers. The answer has one step per line and ends in
"#### N". The same seed and sizes give the same problems (the printed digests are of the text).

Hashes decide the set, so that sets are disjoint whatever their sizes: one answer in ten is for test only, one in ten for
validation only; of the others, one question in four is a prompt, the rest is training. Exits if a test or validation text
is part of another set's.

    python3 make_word_problems.py --out DIR [--train 120000] [--prompts 6000] [--validation 1000]
                                  [--test 1000] [--seed 7]

writes DIR/train.jsonl.gz (for the base model), DIR/prompts.jsonl.gz (for the distillation),
DIR/validation.jsonl.gz (for choosing settings) and DIR/test.jsonl.gz; a size of 0 leaves a file out.
A larger set begins with the smaller one. Standard library only, Python >= 3.9.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import random
import re
import sys
from collections import Counter

BOYS = ["Tom", "Ben", "Sam", "Leo", "Max", "Adam", "Omar", "Paul", "Ravi", "Luis", "Jack", "Noah"]
GIRLS = ["Anna", "Mia", "Lena", "Rosa", "Emma", "Nina", "Sara", "Lucy", "Kate", "Zoe", "Maya", "Ruth"]
THINGS = ["apples", "books", "coins", "cards", "pens", "stamps", "shells", "marbles", "stickers",
          "buttons", "cookies", "pears", "plums", "beads", "toys", "balls", "nuts", "eggs"]
CONTAINERS = [("bag", "bags"), ("box", "boxes"), ("basket", "baskets"), ("jar", "jars"),
              ("tray", "trays"), ("crate", "crates")]
PLACES = ["market", "shop", "fair", "park", "school", "farm"]
DAYS = ["Monday", "Tuesday", "Friday", "Sunday"]
WARES = [("pen", "pens"), ("cup", "cups"), ("book", "books"), ("hat", "hats"), ("toy", "toys"),
         ("cake", "cakes"), ("lamp", "lamps"), ("ball", "balls")]
JOBS = ["washing cars", "painting fences", "walking dogs", "cutting grass"]
PLANTS = ["tulips", "roses", "beans", "carrots", "onions"]

S, M, L = (2, 9), (3, 19), (12, 60)  # small factors, medium and large numbers

# Each template: name, ranges of drawn numbers, derived numbers (each in 1..LARGEST), question wordings, answer. Fields:
# n, m names with he/He/his and she/She/her for the first and the second; t things, u other things; c1, c container(s);
# p place; d day; w1, w ware(s); j job; f plants.
TEMPLATES = [
    ("buy-more", dict(a=L, b=M), "x=a+b",
     ["{n} has {a} {t}. {He} buys {b} more {t} at the {p}. How many {t} does {he} have now?",
      "{n} buys {b} {t} at the {p}. {He} already had {a} {t} at home. How many {t} does {he} have now?",
      "On {d} {n} had {a} {t}, and then {he} bought another {b}. How many {t} does {he} have now?"],
     "{n} had {a} {t} and bought {b} more.\nNow {he} has {a} + {b} = {x} {t}."),
    ("give-away", dict(a=L, b=M), "x=a-b",
     ["{n} has {a} {t}. {He} gives {b} of them to {m}. How many {t} does {n} have left?",
      "{n} gave {m} {b} {t}. Before that {he} had {a} {t}. How many {t} does {n} have left?"],
     "{n} had {a} {t} and gave {b} to {m}.\n{He} has {a} - {b} = {x} {t} left."),
    ("lose-find", dict(a=L, b=M, c=S), "x=a-b y=x+c",
     ["{n} had {a} {t}. {He} lost {b} of them on {d} and found {c} again later. How many {t} does {he} have?",
      "On the way to the {p} {n} lost {b} of {his} {a} {t}, but {he} found {c} of them again. How many {t} does {he} have?"],
     "After losing {b} {t}, {n} had {a} - {b} = {x}.\nAfter finding {c}, {he} has {x} + {c} = {y} {t}."),
    ("two-friends", dict(a=L, b=M), "x=a+b",
     ["{n} has {a} {t} and {m} has {b} {t}. How many {t} do they have together?",
      "{m} took {b} {t} to the {p} and {n} took {a}. How many {t} did the two of them take together?"],
     "{n} has {a} {t} and {m} has {b}.\nTogether that makes {a} + {b} = {x} {t}."),
    ("how-many-more", dict(a=L, b=M), "x=a-b",
     ["{n} has {a} {t}. {m} has {b} {t}. How many more {t} does {n} have than {m}?",
      "{m} found {b} {t} at the {p}, while {n} found {a}. How many more {t} did {n} find than {m}?"],
     "{n} has {a} {t} and {m} has {b}.\nThe difference is {a} - {b} = {x} {t}."),
    ("groups", dict(a=S, b=S), "x=a*b",
     ["{n} packs {a} {c} with {b} {t} in each {c1}. How many {t} does {he} pack in all?",
      "There are {b} {t} in every {c1}. {n} carries {a} {c} to the {p}. How many {t} is that in all?"],
     "There are {a} {c} with {b} {t} each.\nThat makes {a} * {b} = {x} {t} in all."),
    ("groups-minus", dict(a=S, b=S, c=M), "x=a*b y=x-c",
     ["{n} has {a} {c} with {b} {t} in each {c1}. {He} gives {c_} {t} to {m}. How many {t} are left?",
      "{n} filled {a} {c} with {b} {t} each. Then {m} took {c_} of the {t}. How many {t} are left?"],
     "{a} {c} of {b} {t} make {a} * {b} = {x} {t}.\nWithout {c_} of them, {x} - {c_} = {y} {t} are left."),
    ("groups-plus", dict(a=S, b=S, c=M), "x=a*b y=x+c",
     ["{n} has {a} {c} with {b} {t} in each {c1} and {c_} loose {t}. How many {t} does {he} have in all?",
      "Besides {c_} loose {t}, {n} has {a} {c} that hold {b} {t} each. How many {t} does {he} have in all?"],
     "The {a} {c} hold {a} * {b} = {x} {t}.\nWith the loose ones there are {x} + {c_} = {y} {t}."),
    ("price", dict(a=S, b=S), "x=a*b",
     ["One {w1} costs ${a}. {n} buys {b} {w} at the {p}. How many dollars does {he} pay?",
      "{n} buys {b} {w} for {m}. Each {w1} costs ${a}. How many dollars does {he} pay?"],
     "{n} buys {b} {w} at ${a} each.\n{He} pays {b} * {a} = {x} dollars."),
    ("change", dict(a=S, b=S, s=S), "x=a*b y=x+s",
     ["{n} buys {b} {w} that cost ${a} each and pays with ${y}. How many dollars does {he} get back?",
      "One {w1} costs ${a}. {n} takes {b} {w} and hands over ${y}. How many dollars does {he} get back?"],
     "The {b} {w} cost {b} * {a} = {x} dollars.\n{n} gets {y} - {x} = {s} dollars back."),
    ("wage", dict(a=S, b=S), "x=a*b",
     ["{n} earns ${a} an hour by {j}. {He} works for {b} hours on {d}. How many dollars does {he} earn?",
      "On {d} {n} spent {b} hours {j} and got ${a} for each hour. How many dollars did {he} earn?"],
     "{n} works {b} hours at ${a} an hour.\n{He} earns {b} * {a} = {x} dollars."),
    ("wage-spend", dict(a=S, b=S, c=M), "x=a*b y=x-c",
     ["{n} earns ${a} an hour by {j}. After {b} hours {he} spends ${c_} on a {w1}. How many dollars does {he} keep?",
      "{n} worked {b} hours for ${a} an hour and then bought a {w1} for ${c_}. How many dollars did {he} keep?"],
     "{n} earned {b} * {a} = {x} dollars.\nAfter buying the {w1}, {he} keeps {x} - {c_} = {y} dollars."),
    ("pages-left", dict(a=S, b=S, s=M), "x=a*b y=x+s",
     ["A book has {y} pages. {n} reads {a} pages a day for {b} days. How many pages are left to read?",
      "{n} reads {a} pages of a book each day. The book has {y} pages. How many pages are left after {b} days?"],
     "In {b} days {n} reads {b} * {a} = {x} pages.\nSo {y} - {x} = {s} pages are left."),
    ("pages-more", dict(a=M, b=S), "x=a+b y=a+x",
     ["{n} read {a} pages on {d} and {b} pages more than that the day after. How many pages did {he} read in all?",
      "On {d} {n} read {a} pages. The next day {he} read {b} more pages than on {d}. How many pages is that in all?"],
     "The next day {n} read {a} + {b} = {x} pages.\nIn all {he} read {a} + {x} = {y} pages."),
    ("bus", dict(a=L, b=M, c=M), "x=a-b y=x+c",
     ["A bus has {a} riders. At the {p} {b} get off and {c} get on. How many riders are on the bus now?",
      "There are {a} riders on a bus when {n} looks. Then {b} of them leave and {c} enter. How many riders are there now?"],
     "When {b} riders leave, {a} - {b} = {x} stay.\nWhen {c} enter, there are {x} + {c} = {y} riders."),
    ("share", dict(a=S, b=S), "x=a*b",
     ["{n} shares {x} {t} equally among {a} friends. How many {t} does each friend get?",
      "At the {p} {a} friends meet and share {x} {t} equally. How many {t} does each friend get?"],
     "{x} {t} are shared among {a} friends.\nEach friend gets {x} / {a} = {b} {t}."),
    ("share-rest", dict(a=S, b=S, c=S), "x=a*b y=x+c",
     ["{n} has {y} {t}. {He} keeps {c_} and puts the rest into {a} {c} equally. How many {t} are in each {c1}?",
      "Of {y} {t} {n} gives {c_} to {m}. The rest go into {a} {c} equally. How many {t} are in each {c1}?"],
     "There are {y} - {c_} = {x} {t} to put away.\nEach {c1} gets {x} / {a} = {b} {t}."),
    ("chairs", dict(a=S, b=S, c=S), "x=a*b y=x+c",
     ["In the hall there are {a} rows of {b} chairs, and {n} brings {c} more chairs. How many chairs are there?",
      "{n} sets up {a} rows with {b} chairs in each row and puts {c} chairs at the door. How many chairs are there?"],
     "The {a} rows have {a} * {b} = {x} chairs.\nWith {c} more there are {x} + {c} = {y} chairs."),
    ("twice", dict(a=M), "k=2 x=a*k y=a+x",
     ["{n} has {a} {t}. {m} has twice as many. How many {t} do they have together?",
      "{m} has twice as many {t} as {n}, and {n} has {a}. How many {t} do the two have together?"],
     "{m} has {a} * 2 = {x} {t}.\nTogether they have {a} + {x} = {y} {t}."),
    ("three-times", dict(a=S), "k=3 x=a*k y=x-a",
     ["{n} has {a} {t}. {m} has three times as many. How many more {t} does {m} have than {n}?",
      "{m} picked three times as many {t} as {n}. {n} picked {a}. How many more {t} did {m} pick than {n}?"],
     "{m} has {a} * 3 = {x} {t}.\nThat is {x} - {a} = {y} more than {n}."),
    ("ages", dict(a=M, b=S, c=S), "x=a+b y=x-c",
     ["{n} is {a} years old. {m} is {b} years older than {n}. Their cousin is {c} years younger than {m}. How old is the cousin?",
      "{m} is {b} years older than {n}, who is {a}. A friend is {c} years younger than {m}. How old is the friend?"],
     "{m} is {a} + {b} = {x} years old.\nThe other one is {x} - {c} = {y} years old."),
    ("age-later", dict(a=L, b=M), "x=a+b",
     ["{n} is {a} years old this year. How old will {he} be in {b} years?",
      "In {b} years {n} will move to a new town. {He} is {a} years old now. How old will {he} be then?"],
     "{n} is {a} years old now.\nIn {b} years {he} will be {a} + {b} = {x} years old."),
    ("warm", dict(a=L, b=M, c=S), "x=a+b y=x-c",
     ["In the morning it is {a} degrees at the {p}. By noon it is {b} degrees warmer, and by night it drops by {c}. How many degrees is it at night?",
      "On {d} it was {a} degrees. It got {b} degrees warmer and then {c} degrees colder. How many degrees was it at the end?"],
     "At noon it was {a} + {b} = {x} degrees.\nAt the end it was {x} - {c} = {y} degrees."),
    ("walk", dict(a=S, b=S, c=S), "x=a*b y=x+c",
     ["{n} walks {a} miles a day for {b} days and {c} miles on {d}. How many miles does {he} walk in all?",
      "For {b} days {n} walks {a} miles each day. Then {he} walks {c} miles more. How many miles is that in all?"],
     "In {b} days {n} walks {b} * {a} = {x} miles.\nIn all {he} walks {x} + {c} = {y} miles."),
    ("garden", dict(a=S, b=S, c=S), "x=a*b y=x-c",
     ["{n} plants {a} rows of {b} {f}. {c} of the {f} die. How many {f} are still growing?",
      "In the garden {c} {f} died. {n} had planted {a} rows with {b} {f} in each. How many {f} are still growing?"],
     "{n} planted {a} * {b} = {x} {f}.\nThere are {x} - {c} = {y} {f} still growing."),
    ("hens", dict(a=S, b=S), "x=a*b",
     ["The hens of {n} lay {a} eggs a day. How many eggs do they lay in {b} days?",
      "{n} collects {a} eggs from {his} hens every day. How many eggs does {he} collect in {b} days?"],
     "The hens lay {a} eggs on each of {b} days.\nThat makes {b} * {a} = {x} eggs."),
    ("hens-sell", dict(a=S, b=S, c=S), "x=a*b y=x-c",
     ["The hens of {n} lay {a} eggs a day. After {b} days {he} sells {c} eggs at the {p}. How many eggs does {he} still have?",
      "{n} gets {a} eggs a day from {his} hens for {b} days. {m} takes {c} eggs. How many eggs does {n} still have?"],
     "In {b} days the hens lay {b} * {a} = {x} eggs.\n{n} still has {x} - {c} = {y} eggs."),
    ("score", dict(a=S, b=S), "k=3 x=a*k y=x+b",
     ["A team gets 3 points for a win and 1 point for a draw. It has {a} wins and {b} draws. How many points does it have?",
      "The team of {n} had {a} wins at 3 points each and {b} draws at 1 point each. How many points does it have?"],
     "The wins give {a} * 3 = {x} points.\nWith the draws the team has {x} + {b} = {y} points."),
    ("tank", dict(a=M, b=S, c=S), "x=a+b y=x-c",
     ["{n} keeps {a} fish in a tank. {He} adds {b} fish, and {m} takes {c} fish home. How many fish are in the tank?",
      "A tank holds {a} fish. {b} new fish are put in, and {c} fish go to {m}. How many fish are in the tank?"],
     "With the new fish there are {a} + {b} = {x}.\nWithout {c} of them there are {x} - {c} = {y} fish."),
    ("shelves", dict(a=S, b=S, c=S, e=S), "x=a*b y=c*e z=x+y",
     ["{n} has {a} shelves of {b} books and {c} shelves of {e} toys. How many books and toys is that in all?",
      "There are {a} shelves with {b} books each and {c} shelves with {e} toys each. How many books and toys is that in all?"],
     "There are {a} * {b} = {x} books.\nThere are {c} * {e} = {y} toys.\nIn all that makes {x} + {y} = {z}."),
    ("baker", dict(a=S, b=S, c=M), "x=a*b y=x-c",
     ["A baker bakes {a} trays of {b} rolls and sells {c} rolls by noon. How many rolls are not sold?",
      "By noon a baker has sold {c} rolls. She had baked {a} trays of {b} rolls. How many rolls are not sold?"],
     "The baker bakes {a} * {b} = {x} rolls.\nThen {x} - {c} = {y} rolls are not sold."),
    ("saving", dict(a=L, b=S, c=S), "x=b*c y=a+x",
     ["{n} has ${a} and saves ${b} a week for {c} weeks. How many dollars does {he} have then?",
      "For {c} weeks {n} puts ${b} a week into a jar that already holds ${a}. How many dollars are in the jar then?"],
     "In {c} weeks {n} saves {c} * {b} = {x} dollars.\nThen there are {a} + {x} = {y} dollars."),
    ("train", dict(a=S, b=S, c=M), "x=a*b y=x-c",
     ["A train has {a} cars with {b} seats each. {c} riders sit down. How many seats stay free?",
      "On {d} {c} riders enter a train. It has {a} cars, and every car has {b} seats. How many seats stay free?"],
     "The train has {a} * {b} = {x} seats.\nSo {x} - {c} = {y} seats stay free."),
    ("legs", dict(a=S, b=S), "k=4 h=2 x=a*k y=b*h z=x+y",
     ["On a farm there are {a} cows and {b} hens. A cow has 4 legs and a hen has 2. How many legs is that in all?",
      "{n} counts {b} hens with 2 legs and {a} cows with 4 legs. How many legs does {he} count in all?"],
     "The cows have {a} * 4 = {x} legs.\nThe hens have {b} * 2 = {y} legs.\nIn all that makes {x} + {y} = {z}."),
    ("tickets", dict(a=S, b=S, c=S, e=S), "x=a*b y=c*e z=x+y",
     ["A ticket costs ${b} for adults and ${e} for children. How many dollars do {a} adults and {c} children pay?",
      "{n} buys {a} tickets at ${b} and {c} tickets at ${e}. How many dollars does {he} pay in all?"],
     "The first {a} tickets cost {a} * {b} = {x} dollars.\nThe other {c} cost {c} * {e} = {y} dollars.\nIn all that makes {x} + {y} = {z}."),
    ("rope", dict(a=S, b=S, s=S), "x=a*b y=x+s",
     ["{n} has a rope of {y} feet. {He} cuts off {a} pieces of {b} feet each. How many feet of rope are left?",
      "From a rope of {y} feet {n} cuts {a} pieces that are {b} feet long. How many feet of rope are left?"],
     "The pieces take {a} * {b} = {x} feet.\nThen {y} - {x} = {s} feet of rope are left."),
    ("practice", dict(a=M, b=M, c=M), "x=a+b y=x+c",
     ["{n} plays the piano for {a} minutes on {d}, {b} minutes a day later and {c} minutes after that. How many minutes is that in all?",
      "{n} practices {a} minutes before lunch, {b} minutes after lunch and {c} minutes at night. How many minutes is that in all?"],
     "The first two times make {a} + {b} = {x} minutes.\nIn all that makes {x} + {c} = {y} minutes."),
    ("candles", dict(a=S, b=S, s=S), "x=a*b y=x+s",
     ["{n} burns {a} candles every night. {He} has {y} candles. How many candles are left after {b} nights?",
      "There are {y} candles in a box. Each night {n} burns {a} of them. How many candles are left after {b} nights?"],
     "In {b} nights {n} burns {b} * {a} = {x} candles.\nThen {y} - {x} = {s} candles are left."),
    ("trade", dict(a=L, b=S, c=M), "x=a-b y=x+c",
     ["{n} has {a} {t}. {He} trades {b} of them to {m} for {c} other {t}. How many {t} does {n} have after that?",
      "{m} gives {n} {c} {t} in return for {b} others. {n} had {a} {t} at first. How many {t} does {n} have after that?"],
     "{n} gives away {b} and has {a} - {b} = {x} {t}.\nWith {c} from {m} {he} has {x} + {c} = {y} {t}."),
    ("parking", dict(a=S, b=S, c=M), "x=a*b y=x-c",
     ["A car park has {a} rows of {b} places. {c} cars are parked there. How many places are free?",
      "There are {c} cars in a car park that has {a} rows with {b} places each. How many places are free?"],
     "The car park has {a} * {b} = {x} places.\nSo {x} - {c} = {y} places are free."),
    ("boxes-weigh", dict(a=S, b=S, c=S), "x=a*b y=x+c",
     ["A cart weighs {c} pounds when empty. {n} loads {a} sacks of {b} pounds. How many pounds does it weigh now?",
      "{n} puts {a} sacks that weigh {b} pounds each on a cart of {c} pounds. How many pounds does it weigh now?"],
     "The sacks weigh {a} * {b} = {x} pounds.\nWith the cart that is {x} + {c} = {y} pounds."),
    ("two-things", dict(a=M, b=M, c=M), "x=a+b y=x-c",
     ["{n} has {a} {t} and {b} {u}. {He} gives {c_} of these things to {m}. How many things does {n} have left?",
      "{n} took {a} {t} and {b} {u} to the {p} and sold {c_} of these things. How many things does {n} have left?"],
     "{n} had {a} + {b} = {x} things.\nWithout {c_} of them {he} has {x} - {c_} = {y} left."),
    ("fewer", dict(a=L, b=S), "x=a-b y=a+x",
     ["{n} has {a} {t}. {m} has {b} fewer {t} than {n}. How many {t} do they have together?",
      "{m} picked {b} fewer {t} than {n} at the {p}. {n} picked {a}. How many {t} did they pick together?"],
     "{m} has {a} - {b} = {x} {t}.\nTogether they have {a} + {x} = {y} {t}."),
    ("weeks", dict(a=S, b=S), "k=7 x=a*k y=x+b",
     ["{n} will be away for {a} weeks and {b} days. How many days will {he} be away?",
      "It takes {n} {a} weeks and {b} days to paint the house. How many days does it take?"],
     "{a} weeks have {a} * 7 = {x} days.\nWith {b} more days that makes {x} + {b} = {y} days."),
]

LARGEST = 150
EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


def derive(numbers, rules):
    """Adds the derived numbers; returns False if one is outside 1..LARGEST."""
    for rule in rules.split():
        name, term = rule.split("=")
        parts = re.split(r"([-+*])", term)
        left = numbers[parts[0]] if parts[0] in numbers else int(parts[0])
        if len(parts) == 1:
            value = left
        else:
            right = numbers[parts[2]]
            value = {"+": left + right, "-": left - right, "*": left * right}[parts[1]]
        if not 1 <= value <= LARGEST:
            return False
        numbers[name] = value
    return True


def draw_problem(rng):
    """Returns a template's name and {"question", "answer"}."""
    name, ranges, rules, questions, answer = TEMPLATES[rng.randrange(len(TEMPLATES))]
    while True:
        numbers = {key: rng.randint(*bounds) for key, bounds in ranges.items()}
        if derive(numbers, rules):
            break
    fields = dict(numbers)
    if "c" in numbers:
        fields["c_"] = numbers["c"]  # c may become the container below
    boy = rng.random() < 0.5
    first = rng.choice(BOYS if boy else GIRLS)
    second = rng.choice([other for other in BOYS + GIRLS if other != first])
    thing, other_thing = rng.sample(THINGS, 2)
    ware = rng.choice(WARES)
    container = rng.choice(CONTAINERS)
    fields.update(n=first, m=second, t=thing, u=other_thing, p=rng.choice(PLACES), d=rng.choice(DAYS),
                  w1=ware[0], w=ware[1], j=rng.choice(JOBS), f=rng.choice(PLANTS), c1=container[0],
                  he="he" if boy else "she", He="He" if boy else "She", his="his" if boy else "her")
    uses_container = any("{c1}" in text for text in questions)
    if uses_container:
        fields["c"] = container[1]
    text = answer.format(**fields)
    question = rng.choice(questions).format(**fields)
    steps = EQUATION.findall(text)
    for left, sign, right, result in steps:
        a, b = int(left), int(right)
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign]
        if value != int(result) or (sign == "/" and a % b):
            raise SystemExit(f"template {name}: wrong equation in: {text}")
    return name, {"question": question, "answer": f"{text}\n#### {steps[-1][3]}"}


def hashed(text, buckets):
    """Returns a number below `buckets` that depends only on `text`."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % buckets


def part_of(problem):
    """Returns the only set that may hold `problem`."""
    held_out = {0: "test", 1: "validation"}.get(hashed(problem["answer"], 10))
    return held_out or ("prompts" if hashed(problem["question"], 4) == 0 else "train")


def draw_part(part, count, seed, counts):
    """Returns `count` problems of one set with different questions; adds their templates to `counts`."""
    rng = random.Random(f"jforge word problems {seed} {part}")
    problems, taken = [], set()
    misses = 0
    while len(problems) < count:
        name, problem = draw_problem(rng)
        if part_of(problem) != part or problem["question"] in taken:
            misses += 1
            if misses > 200 * count + 1000:
                raise SystemExit("the templates hold too few distinct problems for these sizes")
            continue
        taken.add(problem["question"])
        problems.append(problem)
        counts[name] += 1
    return problems


def endings(text, lengths):
    """Yields the endings of `text` with one of `lengths`. Requires: `lengths` is sorted."""
    for length in lengths:
        if length > len(text):
            return
        yield text[-length:]


def require_disjoint(held_out, others, field, mark):
    """Exits if a held-out problem's `field` occurs in that of another problem.

    Each text holds `mark` once, near its end, so a text can contain another only as its ending.
    """
    texts = {problem[field] for problem in held_out}
    lengths = sorted({len(text) for text in texts})
    for problem in others:
        text = problem[field]
        if text.count(mark) != 1:
            raise SystemExit(f"not one {field}: {text}")
        if any(ending in texts for ending in endings(text, lengths)):
            raise SystemExit(f"a held-out {field} is part of: {text}")


def write_jsonl_gz(path, problems):
    """Writes gzip JSONL. Returns its size and the sha256 of the unpacked text."""
    text = "".join(json.dumps(problem) + "\n" for problem in problems).encode()
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=9, mtime=0, filename="") as stream:
        stream.write(text)
    with open(path + ".tmp", "wb") as file:
        file.write(buffer.getvalue())
    os.replace(path + ".tmp", path)
    return len(buffer.getvalue()), hashlib.sha256(text).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True, help="folder to write into (made if missing)")
    parser.add_argument("--train", type=int, default=120000, help="training problems")
    parser.add_argument("--prompts", type=int, default=6000, help="distillation problems")
    parser.add_argument("--validation", type=int, default=1000, help="problems for choosing settings")
    parser.add_argument("--test", type=int, default=1000, help="test problems")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    if min(options.train, options.prompts, options.validation, options.test) < 0:
        parser.error("sizes must be >= 0")
    os.makedirs(options.out, exist_ok=True)

    counts = Counter()
    parts = {part: draw_part(part, getattr(options, part), options.seed, counts)
             for part in ("test", "validation", "prompts", "train")}
    held_out = parts["test"] + parts["validation"]
    for field, mark in (("question", "?"), ("answer", "####")):
        require_disjoint(held_out, parts["prompts"] + parts["train"], field, mark)
        require_disjoint(parts["test"], parts["validation"], field, mark)
    for part, problems in parts.items():
        if problems:
            path = os.path.join(options.out, f"{part}.jsonl.gz")
            size, digest = write_jsonl_gz(path, problems)
            print(f"{path}: {len(problems)} problems, {size} bytes, sha256 {digest}")
    print(f"{len(TEMPLATES)} templates, {sum(len(t[3]) for t in TEMPLATES)} wordings; "
          f"least used template: {min(counts.values())} problems; test and validation disjoint from the rest")
    return 0


if __name__ == "__main__":
    sys.exit(main())
