"""One idea a file: from a recording to findings."""
