"""Takes out of one line what differs from one message to the next: ids, numbers, addresses, times, quoted and given values.

What is taken out becomes `<*>`, of whatever kind it was. Every pattern reads a bounded stretch and none nests its repeats, so
that hostile text costs no more than its length.
"""

from __future__ import annotations

import re
from functools import lru_cache

from backstop.triage.causes.screen import Screen
from backstop.triage.causes.unquote_messages import (
    SAYS_CODE,
    SAYS_WHAT,
    STILL_SAID,
    unquote_messages,
)
from backstop.triage.causes.vocabulary import is_kind, labels, may_be_name

SLOT = "<*>"
_LETTER = re.compile(r"[^\W\d_]")

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?"
    r"|Dec(?:ember)?)"
)
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,:]\d{1,9})?)?(?:\s?[AaPp][Mm]\b)?"
_ZONE = r"(?:\s?(?:Z|UTC|GMT|[ECMP][SD]T|CES?T|BST|IST|JST)\b|\s?[+-]\d{2}:?\d{2}\b)?"
_TIME = re.compile(
    "|".join(
        (
            rf"\b{_DAY},?\s{_MONTH}\s{{1,2}}\d{{1,2}}\s{_CLOCK}{_ZONE}(?:\s\d{{4}})?",
            rf"(?:\b{_DAY},?\s)?\b\d{{1,2}}[-\s/]{_MONTH}[-\s/,]{{1,2}}\d{{2,4}}(?:[\s:,T]{{1,2}}{_CLOCK}{_ZONE})?",
            rf"\b{_MONTH}\.?\s{{1,2}}\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s\d{{4}})?(?:,?\s{_CLOCK}{_ZONE}(?:\s\d{{4}})?)?\b",
            rf"(?<![\w.])\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}(?:[T\s_-]{_CLOCK}{_ZONE}|[T\s_-]\d{{2}}\.\d{{2}}\.\d{{2}}(?:\.\d+)?)?(?![\w])",
            rf"(?<![\w.])\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{2,4}}[\sT,]{{1,2}}{_CLOCK}{_ZONE}(?!\w)",
            r"\b\d{8}T\d{6}(?:\.\d+)?Z?\b",
            rf"(?<![\w.:-]){_CLOCK}{_ZONE}(?![\w:])",
            r"\bP(?:\d+D)?T(?:\d+H)?(?:\d+M)?(?:[\d.]+S)?(?!\w)",
        )
    )
)
_KEPT = re.compile(
    r"\b(?:HTTP(?:/\d(?:\.\d)?)?|HTTP [Ss]tatus|[Ss]tatus code|[Ss]tatus|[Rr]esponse code|HTTP [Ee]rror)"
    r"\s?[:=]?\s?\(?[45]\d\d\b(?!\s?len|\.\d)"
    r"|\b[45]\d\d (?:Client Error|Server Error|Bad Request|Unauthorized|Forbidden|Not Found|Conflict|Gone|Method Not Allowed"
    r"|Unprocessable|Too Many Requests|Internal Server Error|Bad Gateway|Service Unavailable|Gateway Time)"
    r"|\b(?:SQLSTATE|SQLState|SQL state|sqlstate)\s?[:=]?\s?[(\[]?(?=\w*\d)[0-9A-Z]{5}\b"
    r"|\[?\b(?:Errno|errno|WinError)\s?[:=]?\s?\d{1,5}\b"
    r"|\b(?:[Ee]rror|ERROR|[Rr]esponse|[Ee]xit|[Ss]tatus|[Rr]eturn)(?:[ _-]?[Cc]ode|[ _-]?CODE)\s?[:=]?\s?\(?-?\d{1,5}"
    r"(?![\w.,]\w|\w)"
    r"|\b(?:Msg|Error|ERROR):? \d{1,5}(?![\w.:]\w|\w)"
    r"|\b(?:answered|returned|responded|replied)(?: with)? [45]\d\d(?![\w.]\w|\w)"
    r"|\b(?:ORA|TNS|PLS|IMS|AMQ|WFLY|JBAS|HHH|SRVE|DSRA|ERR|TS|CS|MSB|SQLCODE)[-_]?\d{3,6}\b"
)
"""Numbers that say what happened: they are no slot."""
_DIGITS = str.maketrans("0123456789", "".join(chr(0xE000 + digit) for digit in range(10)))
_BACK = {0xE000 + digit: str(digit) for digit in range(10)}
_URL = re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.\-]{1,40}://[^\s\"'<>`]{0,2000}")
_QUOTED = re.compile(
    r"\"[^\"\n]{0,1000}\"|`[^`\n]{0,1000}`|“[^”]{0,1000}”|«[^»]{0,1000}»|‘[^’]{0,500}’|„[^“”]{0,500}[“”]"
    r"|(?<![\w)\]])b?'[^'\n]{0,1000}'(?!\w)"
)
_UUID = re.compile(
    r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"
)
_ACTIVEMQ_ID = re.compile(r"\bID:[\w.\-]{1,300}(?::-?\w{1,40}){0,8}")
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}[:-]){5,7}[0-9a-fA-F]{2}(?![\w:])")
_IPV6 = re.compile(
    r"(?<![\w:.])\[?(?=[0-9a-fA-F:.]{0,45}:[0-9a-fA-F]{0,4}:)[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?:\d{1,3}(?:\.\d{1,3}){3})?"
    r"(?:%\w{1,20})?(?:/\d{1,3})?(?:\]:\d{1,5}|\])?(?![\w:])"
)
_BASE64 = re.compile(r"(?<![\w+/=])[A-Za-z0-9+/_\-]{12,4096}={1,2}(?![\w=])")
_KEY_VALUE = re.compile(
    r"(?<![\w<>=!])([A-Za-z_][\w.\-]{0,80}(?:\s?\([^()\n]{0,200}\))?)( :?= |:?=)(?!=)"
    r"(\([^()\n]{0,1000}\)|\[[^\[\]\n]{0,1000}\]|\{[^{}\n]{0,1000}\}|<[^<>\s]{0,200}>(?:[^\s,;)\]}]{0,200})|[^\s,;()\[\]{}]{0,2000})"
)
_CODE = re.compile(r"\d{1,5}|[A-Z]{1,8}[-_]?\d{1,5}")
_TOKEN = re.compile(r"<\*>|[^\s,;()\[\]{}<>\"'`=|]{1,4096}")
_NUMBER = re.compile(
    r"[-+~±#$€£]{0,2}\d[\d.,_]*(?:[eE][-+]?\d+)?(?:[-x×]\d[\d.,_]*)?"
    r"(?:st|nd|rd|th|ns|us|µs|ms|s|sec|secs|min|mins|m|h|hrs?|d|days?|[kKMGTP]?i?[bB](?:ps|/s)?|[kKMGTP]|[kMG]?Hz|%|x|°?C|px)?"
)
_UNIT = re.compile(
    r"<\*>\s(?:ns|us|µs|ms|milli(?:s|second)s?|s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|days?|bytes?|[KMGTP]?i?B(?:/s|ps)?|kB|[kM]bit/s|%)(?![\w/])",
)
_HEX = re.compile(r"(?:0[xX][0-9a-fA-F]+[lL]?|[0-9a-fA-F]{8,})")
_SPEAKING = re.compile(
    r"(?i:ipv?[46]|utf-?(?:8|16|32)|sha-?\d{1,3}|md5|base(?:32|64)|http/?[123](?:\.\d)?|https?2?|h2c?|ssh2|oauth2?|x509|tls(?:v?1(?:\.\d)?)"
    r"|ssl(?:v\d)?|log4j2?|u?int(?:8|16|32|64)|float(?:32|64)|s3|ec2|k8s|b2b|p2p|[1-5]xx|x86(?:_64)?|amd64|arm64|iso-?8601|rfc-?\d{3,5}"
    r"|psycopg[23]?|urllib[23]|http2|web3|sqlite3|boto3|protobuf3|grpc2|l[123]|e2e|i18n|r2|v[1-9]|java\d{1,2}|py3|python[23]|win32|win64"
    r"|iso-?8859-\d{1,2}|latin-?1|cp\d{3,4}|ucs-?[24]|gb2312|big5|mp[34]|ext[234]|level[0-9]|ipsec|rs256|hs256|aes-?\d{3})"
)
_CLASS = re.compile(r"(?:[A-Z][a-z]{1,40}\d{0,2}){2,12}")
_DOTTED = re.compile(r"(?:[A-Za-z_]\w{0,80}\.){1,20}[\w$<>]{1,200}")
_CLASS_TAIL = re.compile(r"\$\$.*|\$\d+.*|/0x[0-9a-f]+")
_HOST = re.compile(
    r"[a-z0-9_\-]+(?:\.[a-z0-9_\-]+)*\.(?:com|org|net|io|dev|edu|gov|mil|local|localdomain|internal|lan|corp|intra|home|cloud|svc|example|"
    r"test|app|info|biz|ai|co|de|uk|us|fr|eu|cn|jp|ru|nl|in|br|it|es|se|ch|at|pl|kr|au|ca)\.?",
    re.IGNORECASE,
)
_FILE = re.compile(
    r"[\w\-+~.$#@]{1,120}\.(?:txt|log|json|jsonl|ya?ml|xml|csv|tsv|parquet|avro|orc|tmp|bak|conf|cfg|ini|properties|py|"
    r"java|kt|scala|js|mjs|ts|go|rs|rb|php|cs|cpp|cc|hh?|sh|bat|exe|dll|so|jar|war|zip|gz|tgz|tar|bz2|rpm|deb|pdf|docx?|"
    r"xlsx?|html?|css|png|jpe?g|gif|svg|sql|db|pem|key|crt|cer|pid|lock|sock|dat|bin|img|iso|mp4|md|plist|service|socket|"
    r"target|mum|cat|msi|core|part|swp|out)(?::[\d<*>]+){0,2}",
    re.IGNORECASE,
)
_LABELLED = re.compile(r"[\"']?([^\W\d][\w.\-]{0,200}?)([.:,;!?)\]\"']{0,3})((?:\().*)?")
_LIST = re.compile(r"<\*>(?:\s?[,;|]\s?(?:and |or )?<\*>|\s(?:and |or )?<\*>|[-/:.+@x]<\*>){1,500}")
_NAMES = re.compile(
    r"(?<![\w.\-])(?:(?:<\*>|[a-z_][\w.\-]{0,80}),\s){1,200}(?:<\*>|[a-z_][\w.\-]{0,80})"
)
_BRACKETS = re.compile(r"\[([^\[\]]{0,2000})\]")
_PARENS = re.compile(r"\(([^()]{0,2000})\)")
_BRACES = re.compile(r"\{([^{}]{0,4000})\}")
_CHANGED = re.compile(r"\bfrom [A-Z][A-Z_]{1,80} to [A-Z][A-Z_]{1,80}\b")
_METHOD = re.compile(
    r"\b(?:GET|POST|PUT|DELETE|PATCH|HEAD|OPTIONS|CONNECT|PROPFIND) <\*>(?: HTTP/\d(?:\.\d)?)?"
)
_HAS_KEPT, _HAS_TIME, _HAS_CHANGED, _HAS_METHOD = range(4)
_SCREEN = Screen(
    [
        pattern.replace(r"\b", "")
        for pattern in (
            _KEPT.pattern,
            _TIME.pattern,
            _CHANGED.pattern,
            _METHOD.pattern.partition("<")[0],
        )
    ]
)
"""What is taken out leaves a slot: no digit, word or blank is there that was not there before, nor beside another than before."""
_LEVELS = frozenset(
    {
        "trace",
        "debug",
        "info",
        "notice",
        "warn",
        "warning",
        "error",
        "err",
        "fatal",
        "critical",
        "severe",
    }
)


def mask_line(line: str) -> str:
    """One line without its slots; white space is one blank."""
    text = " ".join(line.split())
    if '"' in text or "'" in text:
        text = unquote_messages(text)
    may_have = _SCREEN.may_match(text)
    if _HAS_KEPT in may_have:
        text = _KEPT.sub(lambda kept: kept[0].translate(_DIGITS), text)
    if "://" in text:
        text = _URL.sub(_keep_stop, text)
    if not text.isalpha():
        text = _take_marked(text, has_time=_HAS_TIME in may_have)
    text = _TOKEN.sub(lambda token: _mask_token(token[0]), text)
    text = _UNIT.sub(SLOT, text)
    text = _mask_labelled(text)
    if _HAS_CHANGED in may_have:
        text = _CHANGED.sub(f"from {SLOT} to {SLOT}", text)
    for _ in range(3):
        before = text
        if "{" in text:
            text = _BRACES.sub(_mask_braces, text)
        if "[" in text:
            text = _BRACKETS.sub(_mask_brackets, text)
        if "(" in text:
            text = _PARENS.sub(_mask_parens, text)
        if ", " in text:
            text = _NAMES.sub(_mask_names, text)
        text = _LIST.sub(SLOT, text)
        if text == before:
            break
    if _HAS_METHOD in may_have:
        text = _METHOD.sub(SLOT, text)
    return text if text.isascii() else text.translate(_BACK)


def own_words(text: str, most: int) -> str:
    """The first words of a text, whatever marks stand around them: for one of which nothing else is left."""
    words = (_mask_token(token[0]) for token in _TOKEN.finditer(" ".join(text.split())))
    return " ".join([word for word in words if SLOT not in word and _LETTER.search(word)][:most])


def _take_marked(text: str, *, has_time: bool) -> str:
    """Everything that its own marks set apart: quotes, times, ids and addresses with a form, values after a key."""
    if any(mark in text for mark in "\"'`“«‘„"):
        text = _QUOTED.sub(SLOT, text)
    if has_time and _has_digit(text):
        text = _TIME.sub(SLOT, text)
    if "-" in text:
        text = _UUID.sub(SLOT, text)
    if ":" in text or "-" in text:
        text = _ACTIVEMQ_ID.sub(SLOT, text)
        text = _MAC.sub(SLOT, text)
        text = _IPV6.sub(SLOT, text)
    if "=" in text:
        text = _BASE64.sub(SLOT, text)
        text = _KEY_VALUE.sub(_mask_value, text)
    return text


def _has_digit(text: str) -> bool:
    return any(digit in text for digit in "0123456789")


def _keep_stop(found: re.Match[str]) -> str:
    """A full stop after a URL is the sentence's."""
    url = found[0]
    return SLOT + url[len(url.rstrip(".,;:!?)]}")) :]


def _mask_value(found: re.Match[str]) -> str:
    key, equals, value = found[1], found[2], found[3]
    if " " in equals and value.strip(".:!?").isalpha():
        return found[
            0
        ]  # `desc = connection refused`: a sentence, whose first word says nothing alone
    if value and value[0] in "([{" and key.lower() in SAYS_WHAT:
        return f"{key}={_KEY_VALUE.sub(_mask_value, value)}"
    if value and value[0] not in "([{<":
        if key.lower() in SAYS_CODE and _CODE.fullmatch(value.translate(_BACK)):
            return f"{key}={value.translate(_DIGITS)}"
        if not _has_digit(value) and key.lower() in SAYS_WHAT:
            return f"{key}={value}"
    name = _PARENS.sub(f"({SLOT})", key) if "(" in key else key
    if _has_digit(name):
        name = SLOT
    return f"{name}={SLOT}" + value[len(value.rstrip(".:")) :]


@lru_cache(maxsize=65_536)
def _mask_token(token: str) -> str:
    """One token without blanks, brackets, quotes or equals signs; its punctuation stays."""
    core = token.rstrip(".:!?*")
    tail = token[len(core) :]
    if not core:
        return token
    if core.isalpha():
        return (
            token
            if core.isascii() and not (len(core) >= 8 and _HEX.fullmatch(core))
            else _mask_word(core) + tail
        )
    return _mask_core(core) + tail


def _mask_word(word: str) -> str:
    return SLOT if _HEX.fullmatch(word) else word


def _mask_core(core: str) -> str:
    if "@" in core:
        return _mask_at(core)
    if "\\" in core and not core.endswith("\\n"):
        return SLOT
    if "/" in core:
        return _mask_slashes(core)
    if ":" in core:
        return _mask_colons(core)
    digits = _has_digit(core)
    if "." in core:
        if _HOST.fullmatch(core) and not is_kind(core):
            return SLOT
        if _FILE.fullmatch(core):
            return SLOT
        if _DOTTED.fullmatch(core) and (not digits or _names_class(core)):
            return _CLASS_TAIL.sub(SLOT, core)
    if not digits:
        return core
    if (
        _SPEAKING.fullmatch(core)
        or _CLASS.fullmatch(core)
        or (core.isidentifier() and is_kind(core))
    ):
        return core
    return SLOT


def _names_class(core: str) -> bool:
    last = core.rsplit(".", 1)[1]
    return (
        is_kind(last)
        or _CLASS.fullmatch(last) is not None
        or (core.count(".") >= 2 and core.split(".", 1)[0].isalpha() and not last[:1].isdigit())
    )


def _mask_at(core: str) -> str:
    before, _, after = core.rpartition("@")
    if (
        before
        and (_HEX.fullmatch(after) or (after.isalnum() and _has_digit(after)))
        and "." not in after
    ):
        return f"{_mask_core(before) if _has_digit(before) else before}@{SLOT}"
    return SLOT if before else core


def _mask_slashes(core: str) -> str:
    if core.startswith(("/", "~/", "./", "../", "-/")) and len(core) > 1:
        return SLOT
    if _SPEAKING.fullmatch(core):
        return core
    parts = core.split("/")
    if (
        len(parts) > 2
        or _has_digit(core)
        or "." in core
        or any(may_be_name(part) for part in parts)
    ):
        return SLOT
    return core


def _mask_colons(core: str) -> str:
    parts = core.split(":")
    if all(part.isdigit() or part == SLOT for part in parts[1:]) and not is_kind(parts[0]):
        # host:port, Foo.java:12, queue:3
        return (
            SLOT
            if may_be_name(parts[0]) or "." in parts[0] or _has_digit(parts[0])
            else f"{parts[0]}:{SLOT}"
        )
    return ":".join(_mask_core(part) if part and not part.isalpha() else part for part in parts)


def _mask_labelled(text: str) -> str:
    """A name after the word that announces it: `user alice`, `topic: orders-eu`."""
    tokens, announcing = text.split(" "), labels()
    for at in range(1, len(tokens)):
        before = tokens[at - 1].rstrip(":").lower()
        if before not in announcing and before.rpartition(":")[2] not in announcing:
            continue
        found = _LABELLED.fullmatch(tokens[at])
        if found and may_be_name(found[1]) and found[1].lower() not in _LEVELS:
            tokens[at] = SLOT + found[2] + (found[3] or "")
    return " ".join(tokens)


def _mask_brackets(found: re.Match[str]) -> str:
    inside = found[1].strip()
    if not inside or inside.lower() in _LEVELS or STILL_SAID.search(inside):
        return found[0]
    if SLOT in inside or "," in inside or (" " not in inside and may_be_name(inside)):
        return f"[{SLOT}]"
    return found[0]


def _mask_names(found: re.Match[str]) -> str:
    """A list of names; a sentence with commas stays."""
    end = found[0].rstrip(".")
    if all(item == SLOT or may_be_name(item) for item in end.split(", ")):
        return SLOT + found[0][len(end) :]
    return found[0]


def _mask_braces(found: re.Match[str]) -> str:
    inside = found[1]
    if not any(mark in inside for mark in (SLOT, "=", ":", ",")):
        return found[0]
    said = [item.strip() for item in inside.split(",") if STILL_SAID.search(item)]
    return f"{{{', '.join(said) or SLOT}}}"


def _mask_parens(found: re.Match[str]) -> str:
    inside = found[1]
    return (
        f"({SLOT})"
        if "," in inside and SLOT in inside and not STILL_SAID.search(inside)
        else found[0]
    )
