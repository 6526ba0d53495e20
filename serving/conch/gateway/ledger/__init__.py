"""What was asked, what it took and what it cost."""
