"""Retention: takes away what is over and safe to take away, in small steps, inside a window; erases one message on request."""
