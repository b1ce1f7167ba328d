"""Bronze: blocks of the usage queue become rows of bronze.blocks, each message once.

planning        bounds of the feed, positions ──▶ stretches of a batch, by bytes
taking          tasks read their stretches, check each block, write a file, answer *runs*
judging         runs are compared with the coverage ──▶ all new, or doubtful, then block by block (ops.block_marks)
batches, marks  the driver commits
coverage        what came so far, for the next batch and for readers
"""
