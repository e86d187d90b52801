"""The same engine behind LitServe: see serve_baselines.py. A module of its own, as its processes import it by name.

LitServe reads JSON or forms, not files as they are.
"""

import base64

import litserve as ls


class Api(ls.LitAPI):  # type: ignore[misc]
    """Batches of files."""

    def __init__(self, export: str | None, point: str, sleep_ms: float, most_at_once: int, wait_s: float) -> None:
        super().__init__(max_batch_size=most_at_once, batch_timeout=wait_s)
        self.made_of = (export, point, sleep_ms)

    def setup(self, device: str) -> None:
        from serve_baselines import model_of

        self.model = model_of(*self.made_of)

    def decode_request(self, request: dict[str, str]) -> bytes:
        return base64.b64decode(request["file"])

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        return list(inputs)

    def predict(self, files: list[bytes]) -> list[dict[str, str]]:
        return self.model(files)

    def unbatch(self, output: list[dict[str, str]]) -> list[dict[str, str]]:
        return output

    def encode_response(self, output: dict[str, str]) -> dict[str, str]:
        return output


def run(api: Api, port: int, deadline_ms: float) -> None:
    server = ls.LitServer(api, accelerator="cpu", timeout=deadline_ms / 1000 if deadline_ms else False)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning", num_api_servers=1)
