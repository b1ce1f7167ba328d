"""What a broker is asked, and what comes of it: the commands and outcomes of one partition.

Commands are requests; the journal's records (`core/values/records`) are the decisions made on them. A command goes to
the leader of the partition's journal, over the in-memory or the framed transport, and is answered once: by its
outcome, by a `CallerError`, or by a `NotNow` error when nothing can be promised.

Those with a `tag` go over the network as they are (`protocol/rpc/command_codec`), and so do the structs inside them:
how to change them is said there.
"""
