"""Another's S3 server, moto, in a process of its own on loopback, for the time of a ``with`` block.

It knows buckets, ranges, ETags, listings and, once told to, access keys. What it lacks is speed: 4 ms a request.
"""

import json
import subprocess
import sys
from typing import Self
from urllib.request import Request, urlopen

import boto3

BUCKET = "gpuzarr-tests"
REGION = "us-east-1"

_SERVE = """
import os, sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.port, flush=True)
threading.Thread(target=lambda: sys.stdin.read() or os._exit(0), daemon=True).start()  # if the tests die, end too
server.serve_forever()
"""


_EVERYTHING = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}


class S3Server:
    """A server with one empty bucket. `key_id` and `secret` are the keys to use; at first it takes any."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", _SERVE]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, text=True, **pipes)
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.key_id, self.secret = "anyone", "anything"
        self.client("s3").create_bucket(Bucket=BUCKET)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def check_keys(self) -> None:
        """Make a user, and refuse requests that are not signed with its keys from now on."""
        iam = self.client("iam")
        iam.create_user(UserName="tester")
        iam.put_user_policy(UserName="tester", PolicyName="all", PolicyDocument=json.dumps(_EVERYTHING))
        keys = iam.create_access_key(UserName="tester")["AccessKey"]
        self.key_id, self.secret = keys["AccessKeyId"], keys["SecretAccessKey"]
        urlopen(Request(f"{self.url}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})).close()

    def client(self, service: str):
        """Return boto3's client of this server."""
        keys = {"aws_access_key_id": self.key_id, "aws_secret_access_key": self.secret}
        return boto3.client(service, region_name=REGION, endpoint_url=self.url, **keys)
