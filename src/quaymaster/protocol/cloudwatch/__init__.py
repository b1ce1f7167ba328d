"""CloudWatch as clients speak it: its operations with their members, three wire forms, errors."""
