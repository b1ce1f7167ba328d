"""Commands for operators over the admin port: accounts, keys, consumer groups, front ends, clocks."""
