"""Run by test_triton_compiles.py in a process of its own: everything that launches a kernel compiles it for a GPU
instead. The interpreter, in which the other tests run, forgives much that the compiler does not.
"""

import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

import logicdiag as ld
from logicdiag.data.config import ViewConfig
from logicdiag.data.views import BLUR_RADIUS, plan_cutmix, plan_strong
from logicdiag.kernels import (
    triton_depthwise,
    triton_levels,
    triton_norm,
    triton_paths,
    triton_read,
    triton_shares,
    triton_truth,
    triton_views,
)
from logicdiag.kernels.tables import Gauge, Sweep
from logicdiag.kernels.triton_loss import Intervals, leaf_loss, path_bce

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.bool: "*i1",
    torch.uint8: "*u8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}
done: dict[str, int] = {}


def instead_of_launching(self: JITFunction, *args, grid, warmup, **options):
    """As Triton's own launcher tells types from values; 1 is a constant to it."""
    values = dict(zip(self.arg_names, args, strict=False)) | {n: options.pop(n) for n in self.arg_names if n in options}
    constants, signature = {}, {}
    for index, parameter in enumerate(self.params):
        value = values[parameter.name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            constants[index,] = value
            signature[parameter.name] = "constexpr"
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = TYPES[value.dtype]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    key = f"{self.__name__} {signature} {constants} {options}"
    if key not in done:
        made = compile(ASTSource(self, signature, constants), target=TARGET, options=options)
        done[key] = len(made.asm["cubin"])
        sys.stdout.write(f"{self.__name__} {done[key]}\n")


WIDE = ld.Hierarchy.from_dict({"a": [f"x{i}" for i in range(20)], "b": None})


def reasoning(h: ld.Hierarchy, dtype: torch.dtype, root: str = "asserted", rules: tuple[str, ...] = ()) -> None:
    (program,) = ld.Diagnoser(ld.KnowledgeBase(h, rules=list(rules), root=root)).program.parts
    values, valid = torch.rand(2, len(h), 300).to(dtype), torch.ones(2, 300, dtype=torch.bool)
    sweep, trust, seeds = Sweep.of(program, "cpu"), torch.ones(len(h)), torch.arange(2)
    found = triton_paths.diagnose(sweep, values, trust, seeds, prob=False, conflict=False)
    triton_paths.labels(sweep, values, found.leaf)
    triton_paths.diagnose(sweep, values, trust, None, valid=valid, log=True)
    triton_paths.diagnose(sweep, values, trust, seeds, valid=valid, uniform=True)
    gauge = Gauge.of(program.layout, "cpu")
    if dtype != torch.float64:
        triton_paths.diagnose(sweep, values, trust, seeds, valid=valid, logits=True)
        triton_truth.sums_of_errors(gauge, values, 2.5, valid)
        sums = triton_truth.sums_of_errors(gauge, values, 5.0, valid, logits=True)
        triton_truth.degrees_of(gauge, sums, torch.tensor(600.0, dtype=torch.float64), 5.0, "CDE")


def depthwise(dtype: torch.dtype, channels: int, window: triton_depthwise.Window) -> None:
    x = torch.rand(2, channels, 60, 60).to(dtype, memory_format=torch.channels_last).requires_grad_()
    triton_depthwise.conv2d(x, torch.rand(channels, 1, *window[:2], requires_grad=True), window).sum().backward()


def norm(dtype: torch.dtype, shape: tuple[int, int, int, int], act: str) -> None:
    x = torch.rand(shape).to(dtype, memory_format=torch.channels_last).requires_grad_()
    weight, bias, mean, var = (torch.rand(shape[1]) for _ in range(4))
    batches = torch.zeros((), dtype=torch.int64)
    triton_norm.batch_norm(x, weight.requires_grad_(), bias, (mean, var, batches), 0.1, 1e-5, act).sum().backward()
    triton_norm.normalise(x.detach(), weight.detach(), bias, mean, var, 1e-5, act)


def main() -> None:
    JITFunction.run = instead_of_launching
    triton_read.how_to_read = lambda values: (
        triton_read.STRAIGHT if values.dtype == torch.bfloat16 else triton_read.PLAIN
    )
    triton_paths.how_to_read = triton_truth.how_to_read = triton_read.how_to_read
    reasoning(ld.Hierarchy.load("voc2012"), torch.bfloat16)
    reasoning(ld.Hierarchy.load("coco"), torch.bfloat16)
    reasoning(ld.Hierarchy.from_dict({"a": ["b", "c"], "d": None}), torch.float32, "free", ("forall x: ~b(x)",))
    reasoning(ld.Hierarchy.load("voc2012"), torch.float64)
    reasoning(WIDE, torch.float16)

    h = ld.Hierarchy.load("voc2012")
    table, leaf = Intervals.of(h.parents, "cpu"), torch.zeros(2, 300, dtype=torch.uint8)
    for dtype, weight, per_leaf in ((torch.bfloat16, torch.ones(2, 300), 1.0), (torch.float32, None, 0.0)):
        logits = torch.rand(2, len(h), 300).to(dtype).requires_grad_()
        leaf_loss(table, logits, leaf, weight, 1.0, per_leaf).backward()
        path_bce(table, logits.detach(), leaf)
        sure = torch.zeros(2, 300, dtype=torch.int16)
        leaf_loss(table, logits, leaf, weight, 1.0, per_leaf, sure).backward()
        triton_shares.shares(triton_shares.Siblings.of(h.parents, "cpu"), logits, leaf).sum().backward()
        triton_levels.deepest(triton_levels.Paths.of(h.parents, "cpu"), logits.detach(), leaf, 0.95)

    key = {"seed": 0, "stream": "x", "step": 0, "slots": (0, 1)}
    plan = {name: torch.from_numpy(array) for name, array in plan_strong(ViewConfig(), **key).items()}
    boxes = torch.from_numpy(plan_cutmix(**key, size=(40, 40), probability=1.0)["boxes"])
    triton_views.strong_view(torch.rand(2, 3, 40, 40), plan, boxes, BLUR_RADIUS)
    triton_views.strong_view(torch.rand(2, 3, 40, 40), plan, None, BLUR_RADIUS)

    depthwise(torch.bfloat16, 48, triton_depthwise.Window(3, 3, 1, 1, 1, 1, 1, 1))
    depthwise(torch.float32, 7, triton_depthwise.Window(5, 5, 2, 1, 1, 1, 2, 2))
    depthwise(torch.float16, 64, triton_depthwise.Window(7, 7, 1, 2, 6, 6, 6, 6))
    norm(torch.bfloat16, (16, 96, 112, 112), "relu6")
    norm(torch.bfloat16, (16, 672, 14, 14), "none")
    norm(torch.float16, (2, 16, 60, 60), "relu")
    norm(torch.float32, (2, 7, 1, 1), "relu6")
    sys.stdout.write(f"all {len(done)}\n")


if __name__ == "__main__":
    main()
