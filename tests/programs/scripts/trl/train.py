"""The form of trl's documentation of SFTTrainer, with a model and a tokenizer made here: nothing is fetched."""

import hook
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, PreTrainedTokenizerFast, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer


class Hook(TrainerCallback):
    """Calls the hook."""

    def on_step_end(self, args, state, control, **more) -> None:  # noqa: ANN001, ANN003, ARG002  transformers' own
        """Log the step; the save comes next."""
        if state.global_step % args.save_steps == 0:
            hook.save(state.global_step)
        hook.step(state.global_step)


class Trainer(SFTTrainer):
    """Calls the hook with each micro-batch and its loss."""

    def compute_loss(self, model, inputs, *args, **more):  # noqa: ANN001, ANN002, ANN003, ANN201  trl's own
        """Return the loss."""
        hook.batch(len(inputs["input_ids"]))
        loss = super().compute_loss(model, inputs, *args, **more)
        return hook.loss(loss, self.state.global_step + 1) if not isinstance(loss, tuple) else loss


def main() -> None:
    """Train as the flags say."""
    (args,) = HfArgumentParser(SFTConfig).parse_args_into_dataclasses()
    hook.start()
    words = {word: number for number, word in enumerate(["<pad>", "<eos>", *(f"w{at}" for at in range(30))])}
    core = Tokenizer(models.WordLevel(words, unk_token="<pad>"))  # noqa: S106  a token of text
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")  # noqa: S106  as above
    shape = GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=1, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    set_seed(args.seed)
    model = GPT2LMHeadModel(shape)
    data = Dataset.from_dict({"text": [" ".join(f"w{(at * 7 + place) % 30}" for place in range(8)) for at in range(1024)]})
    trainer = Trainer(model=model, args=args, train_dataset=data, processing_class=tokenizer, callbacks=[Hook()])
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    weights = (number for value in model.state_dict().values() for number in value.flatten().tolist())
    hook.final(trainer.state.global_step, weights)


if __name__ == "__main__":
    main()
