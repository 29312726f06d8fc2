"""Dead letters: drained, understood, decided; nothing of them is lost on the way."""
