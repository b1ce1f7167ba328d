"""What everybody means: errors, commands and outcomes, records, messages, queue definitions, formats."""
