import tempfile
from pathlib import Path

import tiny_bert
from datasets import Dataset
from made import tell, tell_weights
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, losses, models
from sentence_transformers.training_args import SentenceTransformerTrainingArguments

with tempfile.TemporaryDirectory() as folder:
    word = models.Transformer(tiny_bert.saved(Path(folder)))
    model = SentenceTransformer(
        modules=[word, models.Pooling(word.get_word_embedding_dimension())], device="cpu")
    texts = tiny_bert.sentences(33)
    data = Dataset.from_dict({"a": texts[:-1], "b": texts[1:],
                              "label": [i % 3 / 2 for i in range(32)]})
    trainer = SentenceTransformerTrainer(
        model, SentenceTransformerTrainingArguments(
            folder, per_device_train_batch_size=8, num_train_epochs=2, report_to=[], use_cpu=True,
            save_strategy="no", disable_tqdm=True, logging_steps=1),
        train_dataset=data, loss=losses.CosineSimilarityLoss(model))
    trainer.train()
    for line in trainer.state.log_history:
        if "loss" in line:
            tell("loss", float(line["loss"]))
    tell_weights(model)
