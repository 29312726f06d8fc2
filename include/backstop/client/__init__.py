"""What producers and consumers embed in their own services; needs psycopg2 (or another driver) and redis
only.

A producer calls `record` in its business transaction and `send` after the commit. A consumer group's
worker is a `Consumer`. Programs in other languages follow docs/wire-contract.md.
"""

from backstop.client.blame import DownstreamAway
from backstop.client.consumer import Consumer
from backstop.client.keep_connection import KeptConnection
from backstop.client.ordered_consumer import OrderedConsumer
from backstop.client.process import Ended
from backstop.client.process_once import Holding, ProcessOnce
from backstop.client.publish import SendState, Sent, send, send_many, settle
from backstop.client.retries import Retries
from backstop.client.run_until_signal import run_until_signal
from backstop.client.stub_writer import NewMessage, Recorded, SendPolicy, record, record_many
from backstop.client.ways import Handler, Row, Work, leased, row_lock, transactional
from backstop.leases.front import Front
from backstop.leases.parking import Limits
from backstop.leases.redis_exchange import RedisExchange
from backstop.leases.redis_guard import RedisGuard

__all__ = [
    "Consumer",
    "DownstreamAway",
    "Ended",
    "Front",
    "Handler",
    "Holding",
    "KeptConnection",
    "Limits",
    "NewMessage",
    "OrderedConsumer",
    "ProcessOnce",
    "Recorded",
    "RedisExchange",
    "RedisGuard",
    "Retries",
    "Row",
    "SendPolicy",
    "SendState",
    "Sent",
    "Work",
    "leased",
    "record",
    "record_many",
    "row_lock",
    "run_until_signal",
    "send",
    "send_many",
    "settle",
    "transactional",
]
