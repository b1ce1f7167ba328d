"""One request over several partitions of its queue: which are asked in which order, and what their answers come to.

The classes here say what to ask, and are told what came of it; `frontend/partitions` carries that out.
"""
