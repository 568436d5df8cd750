"""A VGG of which DataParallel spreads the parts over GPUs one by one, not the model as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import data_parallel
from torch.utils.data import TensorDataset

from gpu_engine.common.values import Bounds
from gpu_engine.tasks.digits import Classifier
from gpu_engine.training.precision import Autocast

_PLANS = {  # channels of each 3×3 convolution; M halves the picture (arXiv:1409.1556, table 1)
    "vgg11": (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"),
    "vgg16": (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M",
              512, 512, 512, "M"),
}


@dataclass
class Vgg(Classifier):
    """A VGG network. In mode "dp" it spreads its features and its classifier separately over the
    ticked devices, with torch.nn.parallel.data_parallel; in other modes it is an ordinary model.

    Shapes: pictures (B, 3, `side`, `side`), logits (B, 10). The pictures are generated, so nothing
    is downloaded: each class is a pattern of its own under noise.
    """

    variant: Literal["vgg11", "vgg16"] = "vgg11"
    "Which network of the paper."
    width: Annotated[float, Bounds(gt=0)] = 0.125
    "Share of the paper's channels; 1.0 is the full network."
    side: Annotated[int, Bounds(ge=32, multiple_of=32)] = 32
    "Height and width of a picture; a multiple of 32."
    examples: Annotated[int, Bounds(ge=8)] = 2048
    "Pictures to train on; an eighth of that number is held out."
    noise: Annotated[float, Bounds(ge=0)] = 1.0
    "Strength of the noise; the patterns have strength 1."

    def model(self) -> nn.Module:
        """The network of the chosen variant and width."""
        return VggNet(_PLANS[self.variant], self.width, self.side)

    def train_data(self) -> TensorDataset:
        """`examples` generated pictures and their labels."""
        return self._pictures(self.examples, 1)

    def eval_data(self) -> TensorDataset:
        """Other pictures of the same classes, an eighth as many."""
        return self._pictures(max(self.examples // 8, 1), 2)

    def data_parallel(self, model: nn.Module, devices: list[torch.device]) -> nn.Module:
        """The same model, told to spread its parts over `devices`."""
        assert isinstance(model, VggNet)
        model.devices = devices
        return model

    def _pictures(self, count: int, seed: int) -> TensorDataset:
        patterns = torch.randn(10, 3, self.side, self.side,
                               generator=torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(10, (count,), generator=generator)
        noise = torch.randn(count, 3, self.side, self.side, generator=generator)
        return TensorDataset(patterns[labels] + self.noise * noise, labels)


class VggNet(nn.Module):
    """Pictures (B, 3, S, S) → logits (B, 10)."""

    def __init__(self, plan: tuple[int | str, ...], width: float, side: int) -> None:
        super().__init__()
        self.devices: list[torch.device] = []
        """The GPUs to spread the parts over; with fewer than two, nothing is spread."""
        layers: list[nn.Module] = []
        channels = 3
        for step in plan:
            if isinstance(step, str):  # "M"
                layers.append(nn.MaxPool2d(2))
                continue
            out = max(int(step * width), 8)
            # A deep VGG hardly learns without normalisation.
            layers += [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out),
                       nn.ReLU(inplace=True)]
            channels = out
        self.features = nn.Sequential(*layers)
        hidden = max(int(4096 * width / 8), 32)
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(channels * (side // 32) ** 2, hidden), nn.ReLU(inplace=True),
            nn.Linear(hidden, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Pictures (B, 3, S, S) → logits (B, 10)."""
        return self._spread(self.classifier, self._spread(self.features, x))

    def _spread(self, part: nn.Module, x: Tensor) -> Tensor:
        if len(self.devices) < 2 or not x.is_cuda:
            return part(x)
        if torch.is_autocast_enabled("cuda"):
            part = Autocast(part, "cuda", torch.get_autocast_dtype("cuda"))
        return data_parallel(part, x, device_ids=self.devices)
