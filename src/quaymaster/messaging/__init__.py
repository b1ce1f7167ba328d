"""Messages in and out of what is kept of them: encrypted and decrypted."""
