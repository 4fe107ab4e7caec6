"""Counts what the kernels' machine code executes per element, by arithmetic: nothing runs on a GPU, or as one.

How the count is made:

- `machine_code` lets NVRTC compile a kernel, as a user's machine would, and reads the disassembly: instructions with
  the source lines that they come from, basic blocks and the branches between them, registers, spills.
- `source_counts` builds the same kernel text with g++ and runs it on a real shape through the tests' stand-in for
  CUDA, with every block of code and every access to memory counted: per source line, by threads and by warps.
- `flow` finds how often each basic block of the machine code runs: the flow through its branches that explains the
  counts of loads, stores and lines best, and among equals the one with the fewest instructions. Unrolled, peeled and
  vectorized copies need no telling: it is bytes that must agree.
- `throughput` turns instructions into a bound: what part of the rate of an equal-size copy the issue slots and pipes
  of a multiprocessor leave.

What it does not know: latencies, caches, bank conflicts, uncoalesced access, waits at barriers, warps of a block that
finish apart. So the share is a ceiling. The number of instructions is good to some 15 %, less where branches depend on
values of elements (float16, decompressors), or where the two compilers disagree about the line of a statement.
"""
