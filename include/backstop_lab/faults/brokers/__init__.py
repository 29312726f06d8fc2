"""What the demo does to each kind of broker behind everybody's back: one protocol (protocol.py), one file a broker."""
