import tempfile

import tiny_bert
from datasets import Dataset
from made import tell, tell_weights
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(
    ["<pad>", "<s>", "</s>", "<unk>", *tiny_bert.WORDS])}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", bos_token="<s>",
                                    eos_token="</s>", unk_token="<unk>")
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64))
with tempfile.TemporaryDirectory() as folder:
    trainer = SFTTrainer(
        model, SFTConfig(folder, max_steps=5, per_device_train_batch_size=4, report_to=[],
                         use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True,
                         logging_steps=1, max_length=32),
        train_dataset=Dataset.from_dict({"text": tiny_bert.sentences(32)}),
        processing_class=tokenizer)
    trainer.train()
    for line in trainer.state.log_history:
        if "loss" in line:
            tell("loss", float(line["loss"]))
tell_weights(model)
