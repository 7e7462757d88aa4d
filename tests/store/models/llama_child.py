"""The llama.cpp engine in a process of its own, for tests: one JSON line in, one out.

In: `{"load": PATH}`, or `[ROUTE, BODY]` to be posted to the server of the model loaded last. Out: `[STATUS, ANSWER]`.
"""

import http.client
import json
import os
import sys
from urllib.parse import urlsplit

import xllamacpp


def loaded(path: str) -> xllamacpp.Server:
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.n_gpu_layers = 64, 1, 0
    params.n_batch = params.n_ubatch = 64
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = params.fit_params = params.ui = False
    params.cache_ram_mib, params.n_threads_http, params.verbosity = 0, 1, 1
    return xllamacpp.Server(params)


def main() -> None:
    server = connection = None
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, dict):
            if connection is not None:
                connection.close()
            server = None
            try:
                server = loaded(asked["load"])
            except RuntimeError as error:
                print(json.dumps([0, str(error)]), flush=True)
                continue
            address = urlsplit(server.listening_address)
            connection = http.client.HTTPConnection(address.hostname, address.port)
            print(json.dumps([200, None]), flush=True)
            continue
        assert connection is not None
        assert server is not None
        route, body = asked
        connection.request("POST", route, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        print(json.dumps([answer.status, json.loads(answer.read())]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
