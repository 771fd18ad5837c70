"""Jobs of several ranks: all of them in one simulation, on their own machine or on a platform.

`predict` leads from a job to a forecast. A `rank` is `kept` as it was measured, or priced on a platform; `agreement`
finds which calls of several ranks are one collective, `transfers` prices these on a fabric; `together` makes one
program of all, and `simulated` runs it with what is `supposed` of some ranks; `words` says what came out. `world` makes
many ranks of one, and `scaling` a curve of several such jobs.
"""
