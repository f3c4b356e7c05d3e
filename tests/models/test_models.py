"""The catalogue against the papers: counts, tensors, PowerSGD volumes, and forward passes that run."""

from __future__ import annotations

import os
import sys
import types
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwire import models
from gradwire.core.errors import ConfigError, UnknownName
from gradwire.models import bert, gpt, lstm, ncf, resnet

NAMES = [
    "bert-base",
    "bert-large",
    "bert-small",
    "densenet40",
    "gpt-wikitext2",
    "lstm-ptb",
    "lstm-wikitext2",
    "ncf",
    "ncf-ml1m",
    "resnet101",
    "resnet18-cifar10",
    "resnet18-cifar100",
    "resnet20",
    "resnet50",
    "resnet9",
    "unet",
    "vgg16",
    "vgg16-cifar10",
    "vgg19",
    "vgg19-200",
    "vgg19bn-cifar10",
    "vgg19bn-cifar100",
]

# Table II of GRACE: parameters and gradient tensors. ResNet-50 has a test of its own.
GRACE = {
    "resnet20": (269_467, 51),
    "densenet40": (357_491, 158),
    "resnet9": (6_573_120, 25),
    "vgg16-cifar10": (14_982_987, 30),
    "vgg19": (143_671_337, 38),
    "ncf": (31_832_577, 10),
    "lstm-ptb": (19_775_200, 7),
    "unet": (1_850_305, 46),
}

SMALL = [
    "resnet18-cifar10",
    "resnet18-cifar100",
    "resnet20",
    "resnet9",
    "densenet40",
    "vgg16-cifar10",
    "vgg19bn-cifar10",
    "vgg19bn-cifar100",
    "lstm-ptb",
]

OUTPUTS = {
    "bert-base": (2, 768),
    "bert-large": (2, 128, 30_522),
    "bert-small": (2, 128, 33_279),
    "gpt-wikitext2": (2, 256, 33_278),
    "lstm-ptb": (2, 35, 10_000),
    "lstm-wikitext2": (2, 35, 33_278),
    "ncf": (2,),
    "ncf-ml1m": (2,),
    "unet": (2, 1, 512, 512),
}


@cache
def on_meta(name: str) -> nn.Module:
    return models.build(name)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def powersgd_floats(model: nn.Module, rank: int) -> int:
    """Floats per step: both factors of every matrix, the rank cut to its sides; vectors as they are."""
    total = 0
    for p in model.parameters():
        if p.ndim < 2:
            total += p.numel()
            continue
        rows, columns = p.shape[0], p[0].numel()
        total += min(rank, rows, columns) * (rows + columns)
    return total


def backward(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    model(*inputs).square().mean().backward()


def assert_all_reached(model: nn.Module) -> None:
    missed = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert missed == []


def test_names() -> None:
    assert models.names() == NAMES


@pytest.mark.parametrize("name", models.names())
def test_count_on_meta_is_the_stated_one(name: str) -> None:
    before = torch.get_rng_state()
    model = models.build(name)
    info = models.info(name)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(torch.get_rng_state(), before)
    assert info.name == name
    assert count(model) == info.parameters
    if info.tensors is not None:
        assert len(list(model.parameters())) == info.tensors


@pytest.mark.parametrize("name", models.names())
def test_forward_on_meta(name: str) -> None:
    info = models.info(name)
    out = on_meta(name)(*info.example(2, device="meta"))
    assert tuple(out.shape) == OUTPUTS.get(name, (2, info.classes))


@pytest.mark.parametrize("name", models.names())
def test_info_is_filled_in(name: str) -> None:
    info = models.info(name)
    assert info.description
    assert info.source
    assert info.note == "" or info.note.endswith(".")
    with pytest.raises(AttributeError):
        info.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", models.names())
def test_example_repeats_and_leaves_the_global_random_state(name: str) -> None:
    info = models.info(name)
    before = torch.get_rng_state()
    first, second = info.example(2), info.example(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(first) == len(info.inputs)
    for a, b, entry in zip(first, second, info.inputs, strict=True):
        assert torch.equal(a, b)
        assert a.shape == (2, *entry.shape)
        if entry.below is not None:
            assert a.dtype == torch.int64
            assert 0 <= int(a.min()) <= int(a.max()) < entry.below


@pytest.mark.parametrize("name, published", GRACE.items())
def test_grace_table_two(name: str, published: tuple[int, int]) -> None:
    model = on_meta(name)
    assert (count(model), len(list(model.parameters()))) == published


def test_resnet50_of_grace_has_one_more_class() -> None:
    model = models.build("gradwire.models.resnet:resnet50_1001")
    assert (count(model), len(list(model.parameters()))) == (25_559_081, 161)
    assert count(model) - count(on_meta("resnet50")) == 2_049


def test_nn_lstm_would_differ_as_the_note_says() -> None:
    ours = on_meta("lstm-ptb")
    with torch.device("meta"):
        theirs = nn.LSTM(650, 650, num_layers=2)
    assert count(theirs) - count(ours.get_submodule("layers")) == 5_200
    assert len(list(theirs.parameters())) + 3 == 11


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    model = models.build(name, device="cpu")
    backward(model, models.info(name).example(2))
    assert_all_reached(model)


def test_every_unet_parameter_gets_a_gradient() -> None:
    torch.manual_seed(0)
    model = models.build("unet", device="cpu")
    backward(model, (torch.randn(1, 1, 64, 64),))
    assert_all_reached(model)


@pytest.mark.parametrize("kind", [bert.Bert, bert.BertMaskedLM])
def test_every_bert_parameter_gets_a_gradient(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind(bert.BertSize(layers=2, width=32, heads=4, vocabulary=50))
    backward(model, (torch.randint(50, (2, 16)),))
    assert_all_reached(model)


SMALL_GPT = gpt.GptSize(layers=2, width=32, heads=4, vocabulary=50, length=16, dropout=0.0)


def test_every_gpt_parameter_gets_a_gradient() -> None:
    torch.manual_seed(0)
    model = gpt.Gpt(SMALL_GPT)
    backward(model, (torch.randint(50, (2, 16)),))
    assert_all_reached(model)


def test_a_gpt_does_not_look_ahead() -> None:
    torch.manual_seed(0)
    model = gpt.Gpt(SMALL_GPT).eval()
    words = torch.randint(50, (2, 16))
    other = words.clone()
    other[:, 9:] = (other[:, 9:] + 1) % 50
    before, after = model(words), model(other)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.isclose(before[:, 9:], after[:, 9:]).all(-1).any()


def test_every_ncf_parameter_gets_a_gradient() -> None:
    torch.manual_seed(0)
    model = ncf.NeuMF(30, 20, factors=8, widths=(16, 16, 8), dropout=0.5)
    backward(model, (torch.arange(10), torch.arange(10)))
    assert_all_reached(model)


def test_bottleneck_parameters_get_a_gradient() -> None:
    torch.manual_seed(0)
    model = resnet.ResNet(resnet.Bottleneck, (1, 1, 1, 1), 10, large=True)
    backward(model, (torch.randn(2, 3, 64, 64),))
    assert_all_reached(model)


def test_resnet20_learns_a_batch() -> None:
    torch.manual_seed(0)
    model = models.build("resnet20", device="cpu")
    (images,) = models.info("resnet20").example(4)
    labels = torch.arange(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(8):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4


def test_lstm_agrees_with_torch() -> None:
    torch.manual_seed(0)
    ours = lstm.LSTMLayer(5, 7)
    theirs = nn.LSTM(5, 7, batch_first=True)
    with torch.no_grad():
        from_input, from_state = torch.split(ours.gates.weight, [5, 7], dim=1)
        weights = {"weight_ih_l0": from_input, "weight_hh_l0": from_state, "bias_ih_l0": ours.gates.bias}
        theirs.load_state_dict(weights | {"bias_hh_l0": torch.zeros(28)})
    x = torch.randn(3, 6, 5)
    out, (hidden, cell) = ours(x, None)
    expected, (expected_hidden, expected_cell) = theirs(x)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(hidden, expected_hidden[0])
    torch.testing.assert_close(cell, expected_cell[0])


def test_lstm_agrees_with_a_loop_over_time() -> None:
    torch.manual_seed(0)
    layer = lstm.LSTMLayer(5, 7).double()
    x = torch.randn(3, 6, 5, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn(2, 3, 7, dtype=torch.float64).unbind())

    def loop() -> tuple[Tensor, ...]:
        hidden, cell = state
        outputs = []
        for word in x.unbind(dim=1):
            enter, forget, new, leave = layer.gates(torch.cat([word, hidden], dim=1)).chunk(4, dim=1)
            cell = cell * torch.sigmoid(forget) + torch.sigmoid(enter) * torch.tanh(new)
            hidden = torch.sigmoid(leave) * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs, dim=1), hidden, cell

    results = []
    out, (hidden, cell) = layer(x, state)
    for found in ((out, hidden, cell), loop()):
        total = torch.stack([part.sin().sum() for part in found]).sum()
        gradients = torch.autograd.grad(total, [x, *layer.parameters()])
        results.append([*found, *gradients])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected)


def test_lstm_forward_takes_states_and_gives_them_back() -> None:
    torch.manual_seed(0)
    model = lstm.LanguageModel(20, width=8, layers=2, dropout=0.5).eval()
    words = torch.randint(20, (2, 10))
    _, states = model.advance(words[:, :4])
    scores, after = model(words[:, 4:], states)
    torch.testing.assert_close(scores, model(words)[:, 4:])
    torch.testing.assert_close(after, model.advance(words)[1])


def test_bert_scores_chosen_places_alone() -> None:
    torch.manual_seed(0)
    model = bert.BertMaskedLM(bert.BertSize(layers=1, width=32, heads=4, vocabulary=50, positions=16)).eval()
    words, places = torch.randint(50, (2, 16)), torch.tensor([[3, 15, 0], [8, 8, 1]])
    everywhere = model(words)
    expected = torch.stack([everywhere[row, places[row]] for row in range(2)])
    torch.testing.assert_close(model(words, places=places), expected)


def test_lstm_states_carry_over() -> None:
    torch.manual_seed(0)
    model = lstm.LanguageModel(20, width=8, layers=2, dropout=0.5).eval()
    words = torch.randint(20, (2, 10))
    _, states = model.advance(words[:, :4])
    rest, _ = model.advance(words[:, 4:], states)
    torch.testing.assert_close(rest, model(words)[:, 4:])


def test_bert_ignores_padding() -> None:
    torch.manual_seed(0)
    model = bert.Bert(bert.BertSize(layers=2, width=32, heads=4, vocabulary=50)).eval()
    words = torch.randint(50, (2, 16))
    padded = torch.cat([words, torch.randint(50, (2, 5))], dim=1)
    mask = torch.arange(21).lt(16).expand(2, 21)
    torch.testing.assert_close(model(padded, mask=mask), model(words))


@pytest.mark.parametrize(
    "name, slope, constant, ranks",
    [
        ("resnet18-cifar10", 36_325, 9_610, (1, 2)),
        ("resnet18-cifar100", 36_415, 9_700, (1, 2)),
        ("vgg19bn-cifar10", 53_029, 17_546, (1, 4)),
    ],
)
def test_accordion_volumes(name: str, slope: int, constant: int, ranks: tuple[int, ...]) -> None:
    model = on_meta(name)
    assert [powersgd_floats(model, r) for r in ranks] == [slope * r + constant for r in ranks]


@pytest.mark.parametrize(
    "name, bits",
    [
        ("vgg19-200", {1: 0.02417, 4: 0.08717, 16: 0.33917, 64: 1.3464}),
        ("bert-large", {1: 0.07959, 4: 0.21645, 16: 0.76351, 64: 2.95173}),
    ],
)
def test_bits_per_coordinate(name: str, bits: dict[int, float]) -> None:
    model = on_meta(name)
    ours = {rank: 32 * powersgd_floats(model, rank) / count(model) for rank in bits}
    assert ours == pytest.approx(bits, abs=5e-6)


@pytest.mark.parametrize(
    "name, message",
    [
        (
            "resnet5",
            "no model named 'resnet5'; did you mean resnet50 or resnet9? All names: gradwire size --help",
        ),
        ("bert", "no model named 'bert'; did you mean bert-base? All names: gradwire size --help"),
        ("qqq", "no model named 'qqq'; all names: gradwire size --help"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    for call in (models.build, models.info):
        with pytest.raises(UnknownName) as caught:
            call(name)
        assert str(caught.value) == message


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("own_nets")
    module.small = lambda: nn.Linear(2, 3)  # type: ignore[attr-defined]
    module.numbers = lambda: [1, 2]  # type: ignore[attr-defined]
    module.five = 5  # type: ignore[attr-defined]
    module.Sized = nn.Linear  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_nets", module)
    return module


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_own_factory(device: str) -> None:
    model = models.build("own_nets:small", device=device)
    assert [(tuple(p.shape), p.device.type) for p in model.parameters()] == [((3, 2), device), ((3,), device)]


def test_own_factory_that_draws_leaves_the_random_state(own_module: types.ModuleType) -> None:
    def draws() -> nn.Module:
        torch.manual_seed(7)
        return nn.Linear(2, 2)

    own_module.draws = draws  # type: ignore[attr-defined]
    before = torch.get_rng_state()
    models.build("own_nets:draws")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    "name, message",
    [
        (
            "own nets:small",
            "model 'own nets:small' cannot be read; write module:factory, for example my_package.nets:small",
        ),
        (
            "own_nets:",
            "model 'own_nets:' cannot be read; write module:factory, for example my_package.nets:small",
        ),
        (
            "no_such_nets:small",
            "model 'no_such_nets:small': there is no module 'no_such_nets' in {here} or on the Python path; check its "
            "spelling, or install its package",
        ),
        (
            "own_nets:large",
            "model 'own_nets:large': module 'own_nets' has no 'large'; name a function or class in it",
        ),
        (
            "own_nets:five",
            "model 'own_nets:five': a function or class was wanted, got int; name something that returns "
            "the model when called",
        ),
        (
            "own_nets:Sized",
            "model 'own_nets:Sized': the factory must work without arguments; wrap it in a function that takes none",
        ),
        (
            "own_nets:numbers",
            "model 'own_nets:numbers': the factory must return an nn.Module, got list; return the model itself",
        ),
    ],
)
def test_bad_own_factories(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        models.build(name)
    assert str(caught.value) == message.format(here=os.getcwd())


def test_bad_device() -> None:
    with pytest.raises(ConfigError) as caught:
        models.build("resnet20", device="abacus")
    assert str(caught.value) == (
        "build: `device` must be a torch device such as 'meta', 'cpu' or 'cuda:0', got 'abacus'"
    )


@pytest.mark.parametrize("batch", [0, -1, True, 1.5])
def test_bad_batch(batch: int) -> None:
    with pytest.raises(ConfigError) as caught:
        models.info("resnet20").example(batch)
    assert str(caught.value) == (f"example of resnet20: `batch` must be a whole number of at least 1, got {batch!r}")


@pytest.mark.parametrize("name", models.names())
def test_state_names_are_plain(name: str) -> None:
    keys = [key for key, _ in on_meta(name).named_parameters()]
    assert all(key.split(".")[-1] in ("weight", "bias") for key in keys)
