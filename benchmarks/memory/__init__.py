"""What plain decoding, each draft and a second model weigh in memory."""
