"""Where images come from: archives in, members (key, byte range, class) out. Copies nothing."""
