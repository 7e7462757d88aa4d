"""A real llama.cpp server as its own process: `python -m real_llama_server --model FILE --port PORT`.

It is the server inside the `xllamacpp` package, on the CPU, and it lives until it is ended.
"""

import argparse
import os
import signal


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    os.environ["GGML_NO_BACKTRACE"] = "1"
    # Before the first thread, so that none of the server's takes the signals that are awaited below.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    import xllamacpp

    wanted = xllamacpp.CommonParams()
    wanted.model.path = args.model
    wanted.hostnames = ["127.0.0.1"]
    wanted.port = args.port
    wanted.n_ctx, wanted.n_parallel, wanted.n_gpu_layers = args.context, 1, 0
    wanted.n_batch = wanted.n_ubatch = 64
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = args.threads
    wanted.endpoint_props = True
    wanted.warmup = wanted.fit_params = wanted.ctx_shift = wanted.ui = False
    wanted.cache_ram_mib = wanted.n_ctx_checkpoints = 0
    wanted.verbosity = 1
    server = xllamacpp.Server(wanted)
    print(server.listening_address, flush=True)
    signal.sigwait(ends)
    # The native threads have nothing to put in order.
    os._exit(0)


if __name__ == "__main__":
    main()
