"""RocketMQ: a remoting client of our own, for messages and for looks."""
