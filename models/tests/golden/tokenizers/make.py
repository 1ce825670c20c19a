"""Ids by Python's tiktoken: python make.py FOLDER writes ids.json for text.txt beside this file;
python make.py FOLDER NAME TEXT IDS compares IDS (written by `cargo run -p planaria-models --example
tokenize -- NAME TEXT IDS`) with tiktoken's ids of TEXT.

FOLDER holds r50k_base.tiktoken, cl100k_base.tiktoken and o200k_base.tiktoken: the crate tiktoken-rs
carries them in its assets/. The patterns come from the Python package.
"""
import json
import pathlib
import sys

import tiktoken
import tiktoken_ext.openai_public as public
from tiktoken.load import load_tiktoken_bpe

NAMES = {"gpt2": "r50k_base", "cl100k": "cl100k_base", "o200k": "o200k_base"}


def encoding(folder, name):
    # The package's own recipe, with the vocabulary read from the folder.
    public.load_tiktoken_bpe = lambda url, **_: load_tiktoken_bpe(f"{folder}/{url.split('/')[-1]}")
    return tiktoken.Encoding(**getattr(public, NAMES[name])())


here = pathlib.Path(__file__).parent
if len(sys.argv) == 2:
    text = (here / "text.txt").read_bytes().decode()
    ids = {name: encoding(sys.argv[1], name).encode_ordinary(text) for name in NAMES}
    (here / "ids.json").write_text(json.dumps(ids) + "\n")
else:
    folder, name, text, ids = sys.argv[1:]
    want = encoding(folder, name).encode_ordinary(pathlib.Path(text).read_bytes().decode())
    found = [int(i) for i in pathlib.Path(ids).read_text().split()]
    print(f"{name}: {len(want)} ids,", "identical" if want == found else "DIFFERENT")
    sys.exit(want != found)
