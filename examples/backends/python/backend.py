#!/usr/bin/env python3
"""A backend of the Machine API in one file, with nothing but Python's standard library (3.9 or newer, Linux).

    python3 backend.py --state ./state --port 8480

A machine is one process of this host with whatever it starts: no image, no isolation, one container. It has the core of
the API and no capability, and keeps every rule of it, those of restarts included: kill it with -9 whenever you like.

How it is built, and what to keep when your platform takes the processes' place:

- What was asked for is on disk before anything is done about it (`Machine.save`): a create that was answered is never
  forgotten, and a deleted id stays deleted.
- Beside each process is a small one, the shim (`shim`), that writes down its output and how it ended. It needs no backend.
- One loop (`Backend.tend`) looks at what is and does the next step towards what is wanted. It has no memory of its own, so
  that a backend which starts again simply goes on.

What it leaves out: logs are not rotated, and a process that makes itself a session of its own outlives its machine.
"""
import argparse, base64, contextlib, ctypes, datetime, errno, fcntl, hashlib, hmac, json, os, re, secrets, shutil, signal
import select, socket, subprocess, sys, threading, time, traceback, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

NAME, VERSION, CAPABILITIES = "python-sample", "1", []
TOMBSTONE_SECONDS = 3600
BODY_BYTES = 16 * 2**20
LINE_BYTES = 16 * 1024  # longer lines come as several records, all but the last marked P


def utc(at=None):
    """The API's form of a time: UTC, milliseconds."""
    moment = datetime.datetime.fromtimestamp(time.time() if at is None else at, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def write_file(path, value):
    """All of it or nothing, also when the power goes."""
    new = Path(f"{path}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    folder = os.open(Path(path).parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def read_file(path):
    try:
        return json.loads(Path(path).read_text())
    except FileNotFoundError:
        return None


# ---- the shim: one instance of a container, from its start to its end. Its folder is the current one, its input a pipe
# on which the backend sends signals.


def shim():
    main = read_file("../record.json")["spec"]["containers"][0]
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    write_file("started", utc())
    try:
        child = subprocess.Popen(
            main["command"] + main.get("args", []),
            cwd=main.get("working_dir", "/"),
            env={"PATH": os.defpath, "HOME": "/", **{each["name"]: each["value"] for each in main.get("env", [])}},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL),  # PR_SET_PDEATHSIG: none without its shim
        )
    except (OSError, ValueError) as error:
        code = 127 if getattr(error, "errno", None) == errno.ENOENT else 126
        return write_file("exit", {"exit_code": code, "reason": "StartError", "message": str(error), "at": utc()})
    readers = [
        threading.Thread(target=copy_lines, args=(pipe.fileno(), log, stream), daemon=True)
        for pipe, stream in ((child.stdout, "stdout"), (child.stderr, "stderr"))
    ]
    for thread in [*readers, threading.Thread(target=pass_signals, args=(child.pid,), daemon=True)]:
        thread.start()
    # Until it is reaped, its number is nobody else's: what it has left behind can be killed without a doubt.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    os.killpg(child.pid, signal.SIGKILL)
    for thread in readers:
        thread.join(timeout=5)
    code = child.wait()
    exit_code = 128 - code if code < 0 else code
    write_file("exit", {"exit_code": exit_code, "reason": "Error" if exit_code else "Completed", "at": utc()})


def pass_signals(pid):
    for line in sys.stdin:
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            os.killpg(pid, int(line))


def copy_lines(source, log, stream):
    """From the pipe to the log, in the format of container runtimes. Each record is one write, so two streams can share it."""
    rest = b""

    def record(content, mark):
        seconds, nanos = divmod(time.time_ns(), 10**9)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        os.write(log, f"{at}.{nanos:09d}Z {stream} {mark} ".encode() + content + b"\n")

    while data := os.read(source, 65536):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            while len(line) > LINE_BYTES:
                record(line[:LINE_BYTES], "P")
                line = line[LINE_BYTES:]
            record(line, "F")
        while len(rest) > LINE_BYTES:
            record(rest[:LINE_BYTES], "P")
            rest = rest[LINE_BYTES:]
    if rest:
        record(rest, "P")


# ---- what a request may hold


class ApiError(Exception):
    STATUS = {"invalid": 400, "unauthorized": 401, "not_found": 404, "conflict": 409, "gone": 410, "unsupported": 501}

    def __init__(self, code, message, field=None):
        super().__init__(message)
        self.code, self.field = code, field


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def is_text(value):
    return isinstance(value, str) and "\0" not in value


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**31


def is_name(value):
    return is_text(value) and re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", value)


def is_variable(value):
    return is_text(value) and value != "" and "=" not in value


def is_signal(value):
    return is_text(value) and signal_number(value) is not None


def is_labels(value):
    return isinstance(value, dict) and len(value) <= 256 and all(is_text(each) and len(each) <= 4096 for each in value.values())


def signal_number(name):
    """15, TERM, sigterm"""
    if name.isdigit():
        return int(name) if int(name) in [*signal.valid_signals()] else None
    return getattr(signal, "SIG" + name.upper().removeprefix("SIG"), None)


AMOUNTS = {
    **dict.fromkeys(["cpu_millis", "memory_bytes", "ephemeral_bytes"], is_count),
    "extended": [{"name!": is_text, "count!": is_count}],
}
RESOURCES = {"requests": AMOUNTS, "limits": AMOUNTS}
# A dict is an object with these fields (`!`: required), a list an array of its one entry, a tuple one of its words.
CONTAINER = {
    "name!": is_name,
    "image!": is_text,
    "pull_policy": ("always", "if_not_present", "never"),
    "command!": [is_text],
    "args": [is_text],
    "working_dir": is_text,
    "env": [{"name!": is_variable, "value!": is_text}],
    "resources": RESOURCES,
    "ports": [{"name": is_text, "port!": is_count, "protocol!": ("tcp", "udp", "sctp")}],
    "stop": {"signal": is_signal},
    "termination_message": {"path!": is_text, "policy!": ("file", "fallback_to_logs")},
}
SPEC = {
    "labels!": is_labels,
    "containers!": [CONTAINER],
    "restart_policy!": ("always", "on_failure", "never"),
    "termination_grace_s": is_count,
    "resources": RESOURCES,
    "backoff": {"initial_ms!": is_count, "max_ms!": is_count},
    "priority": lambda value: isinstance(value, int),
    # The host's own do for a process: what the API lets a backend without the capability leave aside.
    **dict.fromkeys(["hostname", "domain"], is_text),
    "hostname_is_fqdn": lambda value: isinstance(value, bool),
    "dns": {"nameservers!": [is_text], "searches!": [is_text], "options!": [is_text]},
}
STOP = {"grace_seconds!": is_number}
# Fields of the API that mean something this backend cannot do. What is asked for and cannot be kept is refused by its name.
NEEDS_MORE = {
    *["init_containers", "ephemeral_containers", "volumes", "mounts", "probes", "hooks", "security", "tty", "stdin"],
    *["stdin_once", "restart_rules", "host_port", "host_ip", "hosts", "registry_auth", "registry_auth_version"],
    *["instance_type", "runtime_handler", "address_tokens", "target", "cdi_devices", "env_tokens", "from_file"],
}


def check(value, shape, field=""):
    """Refuses what is not of that shape. A field that is ignored would run something else than what was asked for."""
    at = field or "the body"
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            raise ApiError("invalid", f"{at} must be an object", field)
        known = {name.rstrip("!"): part for name, part in shape.items()}
        for name, part in value.items():
            path = f"{field}.{name}".lstrip(".")
            if name in known:
                check(part, known[name], path)
            elif name in NEEDS_MORE or (name == "restart_policy" and "command!" in shape):
                if part not in (None, False, [], {}):
                    missing = f"{path}.0" if isinstance(part, list) else path
                    raise ApiError("unsupported", f"this backend cannot do what {missing} asks for", missing)
            elif not name.startswith("x-"):
                raise ApiError("invalid", f"{path} is not known", path)
        for name in shape:
            if name.endswith("!") and name[:-1] not in value:
                path = f"{field}.{name[:-1]}".lstrip(".")
                if path.endswith(".command"):
                    raise ApiError("unsupported", "this backend runs commands and no images: name a command", path)
                raise ApiError("invalid", f"{path} is missing", path)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise ApiError("invalid", f"{at} must be an array", field)
        for index, part in enumerate(value):
            check(part, shape[0], f"{field}.{index}")
    elif not (value in shape if isinstance(shape, tuple) else shape(value)):
        raise ApiError("invalid", f"{at} is not valid", field)


def check_spec(spec):
    check(spec, SPEC)
    if not spec["containers"]:
        raise ApiError("invalid", "a machine has a container", "containers")
    if len(spec["containers"]) > 1:
        raise ApiError("unsupported", "a machine has one container here", "containers.1")
    if not spec["containers"][0]["command"]:
        raise ApiError("unsupported", "this backend runs commands and no images", "containers.0.command")


# ---- machines


class Machine:
    """One folder: `record.json`, and one folder for each instance of its container (the last two are kept)."""

    def __init__(self, folder, record):
        self.folder, self.record = folder, record

    @property
    def shown(self):
        return self.record["shown"]

    @property
    def main(self):
        return self.shown["containers"][0]

    @property
    def is_over(self):
        return self.shown["state"] in ("stopped", "deleted")

    def instance(self, back=0):
        number = self.record["instance"] - back
        return self.folder / str(number) if number > 0 else None

    def shim_lives(self):
        """A pipe that nobody reads cannot be opened for writing."""
        try:
            os.close(os.open(self.instance() / "control", os.O_WRONLY | os.O_NONBLOCK))
            return True
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):
                return False
            raise

    def send(self, number):
        try:
            pipe = os.open(self.instance() / "control", os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, f"{number}\n".encode())
            os.close(pipe)
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.EPIPE, errno.EAGAIN):  # it has just ended by itself
                raise

    def spawn(self):
        folder = self.instance()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        os.mkfifo(folder / "control", 0o600)
        # It has a reader from here on: first this process, then the shim, never none.
        control = os.open(folder / "control", os.O_RDWR)
        subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--shim"],
            cwd=folder,
            stdin=control,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(control)
        shutil.rmtree(self.instance(2) or "/nonexistent", ignore_errors=True)


class Backend:
    def __init__(self, state):
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.lock = open(state / "lock", "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # two would make every machine twice
        self.folder = state / "machines"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.state = state
        self.changed = threading.Condition()
        self.machines = {}
        for folder in self.folder.iterdir():
            if record := read_file(folder / "record.json"):  # else the create was never answered
                self.machines[folder.name] = Machine(folder, record)
        # The counter of all changes outlives a restart, and the last tombstone.
        seen = [machine.shown["revision"] for machine in self.machines.values()]
        self.revision = max([read_file(state / "revision") or 0, *seen])

    def save(self, machine, main=None, **fields):
        """Every change goes through here: what is shown, its version, the revision, the disk, those who wait."""
        self.revision += 1
        machine.shown.update(fields, version=machine.shown["version"] + 1, revision=self.revision)
        if main:
            machine.main.update(main)
        machine.folder.mkdir(mode=0o700, exist_ok=True)
        write_file(machine.folder / "record.json", machine.record)
        self.changed.notify_all()

    def find(self, id):
        # The only proof of absence: this folder is all there is. A platform that does not answer is `unavailable` instead.
        if id not in self.machines:
            raise ApiError("not_found", f"there is no machine {id}")
        return self.machines[id]

    def create(self, id, spec):
        fingerprint = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
        if machine := self.machines.get(id):
            # A create that comes late must not revive what was deleted, a repeated one must not make a second machine.
            if machine.record["wanted"] == "deleted":
                raise ApiError("gone", f"machine {id} was deleted")
            if machine.record["fingerprint"] != fingerprint:
                raise ApiError("conflict", f"machine {id} exists with another specification")
            return machine.shown
        main = spec["containers"][0]
        container = dict(name=main["name"], kind="main", state="waiting", reason="ContainerCreating", ready=False)
        container.update(started=False, restart_count=0, image=main["image"], image_id=main["image"])
        return self.add(id, spec["labels"], [container], spec=spec, fingerprint=fingerprint).shown

    def add(self, id, labels, containers, wanted="running", spec=None, fingerprint=None):
        shown = dict(id=id, version=0, labels=labels, state="creating", reachability="ok", sandbox_ready=True)
        shown.update(created_at=utc(), addresses=[], containers=containers)
        record = dict(shown=shown, spec=spec, fingerprint=fingerprint, wanted=wanted, instance=0, crashes=0)
        record.update(due=0, kill_at=None, asked=False)
        machine = Machine(self.folder / id, record)
        self.save(machine)
        self.machines[id] = machine
        return machine

    def stop(self, machine, grace):
        if machine.is_over:
            return
        record = machine.record
        if record["wanted"] == "running":
            record["wanted"] = "stopped"
        # Of several stops the one that ends first counts.
        record["kill_at"] = min(time.time() + grace, record["kill_at"] or float("inf"))
        self.save(machine, state="stopping")
        self.tend(machine)

    def delete(self, id, force):
        # Also an id that was never seen: its create may still be on the way, and finds the tombstone.
        machine = self.machines.get(id) or self.add(id, {}, [], wanted="deleted")
        if machine.shown["state"] == "deleted":
            return
        machine.record["wanted"] = "deleted"
        if not machine.is_over and machine.record["spec"]:
            self.stop(machine, 0 if force else machine.record["spec"].get("termination_grace_s", 30))
        else:
            self.save(machine, state="deleting")
            self.tend(machine)

    # -- the loop

    def tend_all(self):
        while True:
            with self.changed:
                for machine in list(self.machines.values()):
                    try:
                        self.tend(machine)
                    except Exception:  # a full disk, no process left: tried again, and the other machines go on
                        traceback.print_exc()
            time.sleep(0.05)

    def tend(self, machine):
        """Looks at what is, and does the next step towards what is wanted."""
        record = machine.record
        if machine.shown["state"] == "deleted":
            return self.forget(machine)
        if not machine.is_over and record["spec"]:
            self.tend_container(machine)
        if record["wanted"] == "deleted" and (machine.is_over or not record["spec"]):
            record.update(spec=None, instance=0)  # secrets go, the exit code stays
            self.save(machine, state="deleted", deleted_at=utc(), sandbox_ready=False)
            for instance in machine.folder.glob("[0-9]*"):
                shutil.rmtree(instance, ignore_errors=True)

    def tend_container(self, machine):
        record, main = machine.record, machine.main
        if record["due"] is not None:  # no instance is under way; the next one is due then
            if record["wanted"] != "running":
                return self.over(machine)
            if time.time() >= record["due"]:
                record.update(due=None, instance=record["instance"] + 1)
                self.save(machine)
                machine.spawn()
            return
        lives = machine.shim_lives()  # before what it has written last
        end, started = read_file(machine.instance() / "exit"), read_file(machine.instance() / "started")
        if not started and not lives:  # this backend was killed before it began
            return machine.spawn() if record["wanted"] == "running" else self.over(machine)
        if started and main["state"] != "running":
            id = f"{machine.shown['id']}-{record['instance']}"
            main.pop("reason", None)
            main.pop("terminated", None)
            container = dict(state="running", ready=True, started=True, started_at=started, id=id)
            container.update(restart_count=record["instance"] - 1)
            fields = {"state": "running", "started_at": started} if record["wanted"] == "running" else {}
            self.save(machine, main=container, **fields)
        if end or not lives:
            if not end:  # the host went down, or somebody has killed the shim and with it what it ran
                end = dict(exit_code=137, reason="ContainerStatusUnknown", message="its shim was killed", at=utc())
                write_file(machine.instance() / "exit", end)
            return self.ended(machine, end)
        if record["wanted"] != "running":
            if not record["asked"]:
                machine.send(signal_number(record["spec"]["containers"][0].get("stop", {}).get("signal", "TERM")))
                record["asked"] = True
            if time.time() >= record["kill_at"]:
                machine.send(signal.SIGKILL)

    def ended(self, machine, end):
        record, main = machine.record, machine.main
        at = end.pop("at")
        terminated = dict(end, started_at=main["started_at"], finished_at=at, id=main["id"])
        policy = record["spec"]["restart_policy"]
        again = policy == "always" or (policy == "on_failure" and end["exit_code"] != 0)
        if record["wanted"] != "running" or not again:
            main.update(state="terminated", ready=False, terminated=terminated)
            return self.over(machine)
        backoff = record["spec"].get("backoff", {"initial_ms": 10_000, "max_ms": 300_000})
        ran_ms = (parse_time(at) - parse_time(main["started_at"])) * 1000
        crashes = 0 if ran_ms > 2 * backoff["max_ms"] else record["crashes"]
        wait_ms = min(backoff["max_ms"], backoff["initial_ms"] * 2 ** (crashes - 1)) if crashes else 0
        record.update(crashes=min(crashes + 1, 50), due=time.time() + wait_ms / 1000)
        self.save(machine, main=dict(state="waiting", reason="CrashLoopBackOff", ready=False, last=terminated))

    def over(self, machine):
        if machine.main["state"] == "waiting":  # stopped before it ran, or between two instances
            last = machine.main.pop("last", None) or dict(exit_code=137, reason="Error", finished_at=utc())
            machine.main.pop("reason", None)
            machine.main.update(state="terminated", terminated=last)
        self.save(machine, state="stopped", stopped_at=utc(), sandbox_ready=False)

    def forget(self, machine):
        if time.time() - parse_time(machine.shown["deleted_at"]) > TOMBSTONE_SECONDS:
            write_file(self.state / "revision", self.revision)
            shutil.rmtree(machine.folder)
            del self.machines[machine.shown["id"]]

    # -- logs

    def log(self, id, name, query):
        """What the reply is made of. The machine is looked up at once: an error must come before the first line does."""
        with self.changed:
            machine = self.find(id)
            folder = machine.instance(1 if query["previous"] else 0)
            if name not in [each["name"] for each in machine.shown["containers"]] or (not folder and query["previous"]):
                raise ApiError("not_found", f"machine {id} has no such log of a container {name}")
            if not folder or (machine.main["state"] == "waiting" and "last" not in machine.main):
                raise ApiError("conflict", f"container {name} of machine {id} is waiting to start")
        # From here on it is the log of this one instance, whatever its machine does.
        return self.lines(machine, folder, query)

    def lines(self, machine, folder, query):
        path, offset, left = folder / "log", 0, query["limit_bytes"]
        is_first = True
        while True:
            ended = not folder.exists() or (folder / "exit").exists() or machine.is_over
            try:
                with open(path, "rb") as file:
                    file.seek(offset)
                    data = file.read()
            except FileNotFoundError:
                data = b""
            data = data[: data.rfind(b"\n") + 1]
            offset += len(data)
            records = [each for each in split_records(data) if query["stream"] in (None, each[1])]
            records = [each for each in records if query["since"] is None or parse_time(each[0]) >= query["since"]]
            if is_first and query["tail"] is not None:
                records = tail_of(records, query["tail"])
            is_first = False
            for at, stream, mark, content in records:
                if left is not None:
                    if left < len(content) + (mark == "F"):
                        content, mark = content[:left], "P"
                    left -= len(content) + (mark == "F")
                yield f"{at} {stream} {mark} ".encode() + content + b"\n"
                if left == 0:
                    return
            if ended or not query["follow"]:
                return
            yield b""  # is somebody still there?
            time.sleep(0.1)


def split_records(data):
    """Time, stream, mark, content; only newlines part records, whatever else programs print."""
    for line in data.split(b"\n")[:-1]:
        at, stream, mark, content = line.split(b" ", 3)
        yield at.decode(), stream.decode(), mark.decode(), content


def tail_of(records, count):
    """The last whole lines; what is marked P belongs to the line that ends after it."""
    starts = [0, *[index + 1 for index, each in enumerate(records) if each[2] == "F"]]
    if starts[-1] == len(records):
        starts.pop()
    return records[starts[-count] :] if 0 < count <= len(starts) else (records if count else [])


def parse_time(text):
    """Seconds since 1970."""
    whole, _, rest = text.removesuffix("Z").partition(".")
    moment = datetime.datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=datetime.timezone.utc)
    return moment.timestamp() + float(f"0.{rest or 0}")


# ---- HTTP

STATES = "pending creating starting running stopping stopped failed deleting deleted".split()


def boolean(text):
    return {"true": True, "false": False}[text]


def whole(text):
    if not re.fullmatch(r"\d{1,15}", text):
        raise ValueError
    return int(text)


def page_size(text):
    if not 1 <= whole(text) <= 10_000:
        raise ValueError
    return whole(text)


def seconds(text):
    if not 0 <= float(text) <= 60:
        raise ValueError
    return float(text)


def states(text):
    if not set(text.split(",")) <= set(STATES):
        raise ValueError
    return text.split(",")


def stream(text):
    return {"stdout": "stdout", "stderr": "stderr"}[text]


def label(text):
    key, value = text.split("=", 1)
    return key, value


def cursor(text):
    """The first page's revision, and the last id seen: ids come in order, so whatever comes and goes moves nothing."""
    revision, id = json.loads(base64.urlsafe_b64decode(text.encode()))
    return int(revision), str(id)


ID = r"/v1/machines/([^/]+)"
# Method, path, what it may be asked with, and the method of Handler that answers.
ROUTES = [
    ("GET", r"/v1/info", {}, "info"),
    ("GET", r"/v1/machines", {"label": [label], "limit": page_size, "cursor": cursor, "include_deleted": boolean}, "list"),
    ("GET", ID, {"wait": states, "since_version": whole, "timeout": seconds}, "get"),
    ("PUT", ID, {}, "put"),
    ("DELETE", ID, {"force": boolean}, "delete"),
    ("POST", ID + "/stop", {}, "stop"),
    (
        "GET",
        ID + r"/containers/([^/]+)/logs",
        dict(follow=boolean, previous=boolean, tail=whole, since=parse_time, stream=stream, limit_bytes=whole),
        "logs",
    ),
]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    backend, token = None, ""

    def answer(self):
        # Without one, it gets one: by it a failure is found in the log.
        given = self.headers.get("X-Request-Id", "")
        self.request_id = given if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", given) else secrets.token_hex(8)
        started = time.monotonic()
        try:
            size = self.headers.get("Content-Length", "0")
            if "Transfer-Encoding" in self.headers or not size.isdigit() or int(size) > BODY_BYTES:
                self.close_connection = True  # what follows cannot be told from the next request
                raise ApiError("invalid", f"a body has a Content-Length of at most {BODY_BYTES}")
            body = self.rfile.read(int(size))
            # Before anything else: strangers learn nothing, not even what is absent.
            if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), f"Bearer {self.token}".encode()):
                raise ApiError("unauthorized", "the token is missing, or another one")
            self.route(body)
        except ApiError as error:
            self.refuse(error.code, str(error), error.field)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has hung up, which changes nothing
        except OSError as error:  # the disk is full: nothing is known of what became of it
            self.refuse("unavailable", str(error))
        print(f"{self.command} {self.path} {time.monotonic() - started:.3f}s {self.request_id}", file=sys.stderr)

    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = answer

    def route(self, body):
        url = urllib.parse.urlsplit(self.path)
        for method, pattern, known, name in ROUTES:
            match = re.fullmatch(pattern, url.path)
            if not match or method != self.command:
                continue
            ids = [urllib.parse.unquote(each) for each in match.groups()]
            if ids and not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,126}[a-z0-9])?", ids[0]):
                raise ApiError("invalid", f"{ids[0]!r} is no id", "id")
            query = {key: [] if isinstance(kind, list) else None for key, kind in known.items()}
            for key, text in urllib.parse.parse_qsl(url.query, keep_blank_values=True):
                if key.startswith("x-"):
                    continue
                # A misspelt selector that is ignored lists, and so touches, other people's machines.
                if key not in known:
                    raise ApiError("invalid", f"the parameter {key} is not known", key)
                try:
                    if isinstance(known[key], list):
                        query[key].append(known[key][0](text))
                    else:
                        query[key] = known[key](text)
                except (ValueError, KeyError, TypeError):
                    raise ApiError("invalid", f"{key}={text} is not valid", key) from None
            return getattr(self, f"on_{name}")(*ids, query, body)
        # `not_found` would be proof that a machine is absent.
        raise ApiError("unsupported", f"there is no {self.command} {url.path}")

    def on_info(self, _query, _body):
        limits = {"body_bytes": BODY_BYTES, "tombstone_seconds": TOMBSTONE_SECONDS}
        self.reply(200, dict(name=NAME, version=VERSION, api="v1", capabilities=CAPABILITIES, limits=limits))

    def on_list(self, query, _body):
        limit = query["limit"] or 500
        with self.backend.changed:
            revision, after = query["cursor"] or (self.backend.revision, "")
            shown = [self.backend.machines[id].shown for id in sorted(self.backend.machines) if id > after]
            shown = [each for each in shown if query["include_deleted"] or each["state"] != "deleted"]
            shown = [each for each in shown if all(each["labels"].get(key) == value for key, value in query["label"])]
            page = {"items": shown[:limit], "revision": revision}
            if len(shown) > limit:
                last = json.dumps([revision, shown[limit - 1]["id"]])
                page["next_cursor"] = base64.urlsafe_b64encode(last.encode()).decode()
            text = json.dumps(page)
        self.reply(200, text)

    def on_get(self, id, query, _body):
        with self.backend.changed:
            self.backend.find(id)

            def is_so():
                machine = self.backend.machines.get(id)  # a tombstone may end meanwhile
                if not machine or (query["wait"] is None and query["since_version"] is None):
                    return True
                newer = query["since_version"] is not None and machine.shown["version"] > query["since_version"]
                return newer or machine.shown["state"] in (query["wait"] or [])

            self.backend.changed.wait_for(is_so, timeout=query["timeout"] or 0)
            text = json.dumps(self.backend.find(id).shown)
        self.reply(200, text)

    def on_put(self, id, _query, body):
        spec = self.json(body)
        check_spec(spec)
        with self.backend.changed:
            text = json.dumps(self.backend.create(id, spec))
        self.reply(201, text)

    def on_stop(self, id, _query, body):
        asked = self.json(body)
        check(asked, STOP)
        with self.backend.changed:
            machine = self.backend.find(id)
            self.backend.stop(machine, asked["grace_seconds"])
            text = json.dumps(machine.shown)
        self.reply(202, text)

    def on_delete(self, id, query, _body):
        with self.backend.changed:
            self.backend.delete(id, query["force"])
        self.reply(202)

    def on_logs(self, id, name, query, _body):
        lines = self.backend.log(id, name, query)
        self.send_response(200)
        self.send_header("X-Request-Id", self.request_id)
        self.send_header("Content-Type", "text/x-cri-log")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            if line:
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            elif select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                return  # nobody follows any more
        self.wfile.write(b"0\r\n\r\n")

    def json(self, body):
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ApiError("invalid", f"the body is not JSON: {error}") from None

    def refuse(self, code, message, field=None):
        error = dict(code=code, message=message, request_id=self.request_id, **({"field": field} if field else {}))
        self.reply(ApiError.STATUS.get(code, 503), {"error": error})

    def reply(self, status, value=None):
        data = b"" if value is None else (value if isinstance(value, str) else json.dumps(value)).encode()
        self.send_response(status)
        self.send_header("X-Request-Id", self.request_id)
        if value is not None:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_parts):
        pass  # `answer` tells more


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


def main():
    options = argparse.ArgumentParser(description="a backend of the Machine API whose machines are processes of this host")
    options.add_argument("--state", type=Path, default=Path("state"), help="folder of all that it knows")
    options.add_argument("--port", type=int, default=8480)
    options.add_argument("--shim", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.shim:
        return shim()
    backend = Handler.backend = Backend(given.state.resolve())
    token = given.state / "token"
    if not token.exists():
        with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32))
    Handler.token = token.read_text().strip()
    server = Server(("127.0.0.1", given.port), Handler)
    threading.Thread(target=backend.tend_all, daemon=True).start()
    print(f"listening on http://127.0.0.1:{server.server_address[1]}, the token is in {token}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
