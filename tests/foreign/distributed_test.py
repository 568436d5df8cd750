"""torch's own tests of torch.distributed, from the wheel, over gloo. Each is two processes
forked from this one, as new ones would spend minutes to import torch."""

import os
import sys
from pathlib import Path

for name in ("barrier", "test_dir"):
    Path(name).mkdir(exist_ok=True)
os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": "2", "TEMP_DIR": os.getcwd()}  # noqa: PTH109
import torch  # noqa: E402
from torch.testing._internal.common_utils import run_tests  # noqa: E402
from torch.testing._internal.distributed.distributed_test import (  # noqa: E402
    DistributedTest,
    TestDistBackend,
)

torch.set_num_threads(1)


class TestGloo(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


if __name__ == "__main__":
    if sys.argv[1:]:
        names = sys.argv[1:]
        sys.argv[1:] = [f"TestGloo.{name}" for name in names]
    run_tests()
