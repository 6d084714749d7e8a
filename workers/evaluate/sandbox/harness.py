"""Runs an untrusted program inside the sandbox (sandbox.h, harness_channel.h).

All state is in locals of one function, set before the program loads, so that changes to builtins, os, json or this
module's globals do not reach it. Frame: type byte, little-endian 32-bit length, payload.
From the parent: S token+source, K nonce+check, C arguments. To the parent: R ready, L token (loaded), N nonce
(checked), A arguments received, V value, E reason.
"""


def serve(read_descriptor, write_descriptor, value_limit, entry_point):
    import _json
    import _signal
    import builtins
    import gc
    import posix
    import resource
    import sys

    read, write, leave, dup2 = posix.read, posix.write, posix._exit, posix.dup2
    pristine, restore_names, forget_names = dict(builtins.__dict__), builtins.__dict__.update, builtins.__dict__.clear
    settrace, setprofile, setitimer = sys.settrace, sys.setprofile, _signal.setitimer
    timers = (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF)
    callbacks, modules, quote = gc.callbacks, sys.modules, _json.encode_basestring_ascii
    get_digits = getattr(sys, "get_int_max_str_digits", None)
    set_digits = getattr(sys, "set_int_max_str_digits", None)
    module = type(sys)("candidate")
    resource.setrlimit(resource.RLIMIT_NPROC, (64, 64))

    def read_exactly(size):
        parts = []
        while size > 0:
            part = read(read_descriptor, min(size, 1 << 20))
            if not part:
                leave(70)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def receive():
        header = read_exactly(5)
        return header[:1], read_exactly(int.from_bytes(header[1:], "little"))

    def send(kind, payload):
        data = memoryview(kind + len(payload).to_bytes(4, "little") + payload)
        while data:
            data = data[write(write_descriptor, data):]

    def regain():
        """Restores builtins and removes the program's hooks and timers."""
        forget_names()
        restore_names(pristine)
        settrace(None)
        setprofile(None)
        for timer in timers:
            setitimer(timer, 0)
        callbacks.clear()

    def describe(error):
        name, text, line = "exception", "", 0
        try:
            name = type.__dict__["__name__"].__get__(type(error))
            text = str(error)
            trace = error.__traceback__
            while trace is not None:
                if trace.tb_frame.f_code.co_filename == "<check>":
                    line = trace.tb_lineno
                trace = trace.tb_next
        except BaseException:
            pass
        regain()
        place = f" at line {line} of the check" if line else ""
        return f"{name}{': ' if text else ''}{text[:400]}{place}"

    def fail(reason):
        send(b"E", reason.encode("ascii", "backslashreplace"))
        leave(1)

    def encode(value):
        """Returns a value's JSON text (data/tasks/code_runner.h)."""
        parts, size = [], 0
        numpy = modules.get("numpy")
        array, scalar = getattr(numpy, "ndarray", None), getattr(numpy, "generic", None)
        bases_of = type.__dict__["__mro__"].__get__
        real, imaginary = complex.__dict__["real"].__get__, complex.__dict__["imag"].__get__

        def put(text):
            nonlocal size
            size += len(text)
            if size > value_limit:
                raise OverflowError
            parts.append(text)

        def put_text(text):
            try:
                text.encode("utf-8")
                put(quote(text))
            except UnicodeEncodeError:
                put('{"str_utf16": "' + text.encode("utf-16-be", "surrogatepass").hex() + '"}')

        def put_all(items, depth):
            put("[")
            first = True
            for item in items:
                if not first:
                    put(", ")
                first = False
                put_value(item, depth)
            put("]")

        def put_pairs(pairs, depth):
            put('{"dict": [')
            first = True
            for key, item in pairs:
                put("[" if first else ", [")
                first = False
                put_value(key, depth)
                put(", ")
                put_value(item, depth)
                put("]")
            put("]}")

        def decimal_text(number):
            """Returns the digits of a non-negative integer in less than quadratic time."""
            import _decimal

            powers = {}

            def power(bits):
                if bits not in powers:
                    half = bits >> 1
                    powers[bits] = _decimal.Decimal(1 << bits) if bits <= 256 else power(half) * power(bits - half)
                return powers[bits]

            def convert(part, bits):
                if bits <= 256:
                    return _decimal.Decimal(part)
                half = bits >> 1
                high = part >> half
                return convert(part - (high << half), half) + convert(high, bits - half) * power(half)

            with _decimal.localcontext() as context:
                context.prec, context.Emax, context.Emin = _decimal.MAX_PREC, _decimal.MAX_EMAX, _decimal.MIN_EMIN
                context.traps[_decimal.Inexact] = True
                return str(convert(number, number.bit_length()))

        def put_int(number):
            size_of = int.__abs__(number)
            if size_of.bit_length() > 60000:
                put('{"int": "' + ("-" if int.__lt__(number, 0) else "") + decimal_text(size_of) + '"}')
                return
            if get_digits is None:
                put('{"int": "' + int.__repr__(number) + '"}')
                return
            digits = get_digits()
            set_digits(0)
            try:
                put('{"int": "' + int.__repr__(number) + '"}')
            finally:
                set_digits(digits)

        def put_value(item, depth):
            kind = type(item)
            if depth > 100:
                put('{"other": ' + quote(type.__dict__["__name__"].__get__(kind)) + "}")
                return
            for base in bases_of(kind):
                if base is bool:
                    put("true" if item else "false")
                elif base is int:
                    put_int(item)
                elif base is str:
                    put_text(str.__str__(item))
                elif base is float:
                    put('{"float": "' + float.__repr__(item) + '"}')
                elif base is list:
                    put_all(list.__iter__(item), depth + 1)
                elif base is tuple:
                    put('{"tuple": ')
                    put_all(tuple.__iter__(item), depth + 1)
                    put("}")
                elif base is dict:
                    put_pairs(dict.items(item), depth + 1)
                elif base is set or base is frozenset:
                    put('{"set": ')
                    put_all(base.__iter__(item), depth + 1)
                    put("}")
                elif base is type(None):
                    put("null")
                elif base is complex:
                    put('{"complex": ["' + float.__repr__(real(item)) + '", "' + float.__repr__(imaginary(item)) + '"]}')
                elif base is bytes or base is bytearray:
                    put('{"bytes": "' + base.hex(item) + '"}')
                elif base is array and array is not None:
                    put('{"array": ')
                    put_value(array.tolist(item), depth + 1)
                    put("}")
                elif base is scalar and scalar is not None:
                    plain = scalar.item(item)
                    if type(plain) is kind:
                        continue
                    put_value(plain, depth + 1)
                else:
                    continue
                return
            put('{"other": ' + quote(type.__dict__["__name__"].__get__(kind)) + "}")

        put_value(value, 0)
        return "".join(parts).encode("ascii")

    send(b"R", sys.version.split()[0].encode("ascii"))
    # The parent reads standard error only to learn why the interpreter did not start.
    dup2(1, 2)

    kind, payload = receive()
    if kind != b"S":
        leave(70)
    token, source = payload[:16], payload[16:]
    del payload
    modules["candidate"] = module
    namespace = module.__dict__
    try:
        exec(compile(source.decode("utf-8"), "<candidate>", "exec", dont_inherit=True, optimize=0), namespace)
    except BaseException as error:
        regain()
        fail("loading: " + describe(error))
    regain()
    send(b"L", token)

    kind, payload = receive()
    if kind != b"K":
        leave(70)
    nonce, check = payload[:16], payload[16:]
    namespace["__builtins__"] = builtins
    try:
        exec(compile(check.decode("utf-8"), "<check>", "exec", dont_inherit=True, optimize=0), namespace)
    except BaseException as error:
        regain()
        fail(describe(error))
    regain()
    send(b"N", nonce)

    call = 0
    while True:
        kind, payload = receive()
        if kind != b"C":
            leave(70)
        try:
            arguments = eval(payload.decode("utf-8"), {"__builtins__": dict(pristine)})
        except BaseException as error:
            regain()
            fail(f"arguments of call {call}: {describe(error)}")
        send(b"A", b"")
        try:
            value = namespace[entry_point](*arguments)
        except BaseException as error:
            regain()
            fail(f"call {call}: {describe(error)}")
        regain()
        try:
            value = encode(value)
        except OverflowError:
            fail(f"call {call}: value larger than {value_limit} bytes")
        except BaseException as error:
            regain()
            fail(f"value of call {call}: {describe(error)}")
        send(b"V", value)
        del value
        call += 1


def start():
    import sys

    words = sys.argv[1:]
    sys.argv[:] = ["candidate"]
    sys.orig_argv[:] = ["candidate"] if hasattr(sys, "orig_argv") else []
    sys.path[:] = [folder for folder in sys.path if folder]
    run = globals().pop("serve")
    del globals()["start"]
    run(int(words[0]), int(words[1]), int(words[2]), words[3])


start()
