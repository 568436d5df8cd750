"""A BERT from its config, with a vocabulary made up here."""

from __future__ import annotations

from pathlib import Path

from transformers import BertConfig, BertModel, BertTokenizerFast

WORDS = ["a", "run", "that", "ends", "well", "is", "no", "news", "of", "loss"]


def saved(folder: Path) -> str:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    BertModel(BertConfig(vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1,
                         num_attention_heads=2, intermediate_size=32, max_position_embeddings=32,
                         hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                         )).save_pretrained(folder)
    return str(folder)


def sentences(many: int) -> list[str]:
    return [" ".join(WORDS[(i * j + j) % len(WORDS)] for j in range(1, 6)) for i in range(many)]
