#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the Megatron indexed datasets of tests/golden/megatron with Megatron's own writer.

    scripts/golden_megatron.py [FOLDER]

Needs torch, numpy and megatron-core. One pair of files for each integer type that the writer knows,
told by its name; each holds the three documents below, of one, two and three sequences.
"""
import pathlib
import sys

import numpy
import torch
from megatron.core.datasets import indexed_dataset

TYPES = {"u8": numpy.uint8, "i8": numpy.int8, "i16": numpy.int16, "i32": numpy.int32, "i64": numpy.int64,
         "u16": numpy.uint16}


def documents(dtype):
    """Token t of a sequence that begins with number n is n + t, but the last is the type's largest in 31 bits."""
    most = min(int(numpy.iinfo(dtype).max), 2**31 - 1)
    result = []
    number = 0
    for lengths in ([3], [1, 4], [2, 1, 5]):
        document = []
        for length in lengths:
            document.append([number + at for at in range(length - 1)] + [most])
            number += length
        result.append(document)
    return result


def main(arguments):
    here = pathlib.Path(__file__).resolve().parent.parent
    folder = pathlib.Path(arguments[0]) if arguments else here / "tests" / "golden" / "megatron"
    folder.mkdir(parents=True, exist_ok=True)
    builder_type = getattr(indexed_dataset, "IndexedDatasetBuilder", None) or indexed_dataset.MMapIndexedDatasetBuilder
    for name, dtype in TYPES.items():
        builder = builder_type(str(folder / f"{name}.bin"), dtype=dtype)
        for document in documents(dtype):
            for sequence in document:
                # torch has no uint16: the writer converts what it is given to its type.
                builder.add_item(torch.tensor(sequence, dtype=torch.int64))
            builder.end_document()
        builder.finalize(str(folder / f"{name}.idx"))
    print(f"{len(TYPES)} datasets in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
