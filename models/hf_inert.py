"""Keys of Hugging Face's ``config.json`` that change nothing in the forward pass this project builds."""

from __future__ import annotations

# The fields of transformers' GenerationConfig, which its version 4 wrote into config.json too. They choose tokens; the
# forward pass does not look at them. A test compares the list with the class.
GENERATION_KEYS = frozenset(
    "assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight assistant_lookbehind bad_words_ids "
    "begin_suppress_tokens bos_token_id cache_config cache_implementation compile_config constraints "
    "continuous_batching_config decoder_start_token_id disable_compile diversity_penalty do_sample dola_layers "
    "early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty eos_token_id epsilon_cutoff eta_cutoff "
    "exponential_decay_length_penalty force_words_ids forced_bos_token_id forced_eos_token_id guidance_scale "
    "is_assistant length_penalty low_memory max_cache_len max_length max_matching_ngram_size max_new_tokens max_time "
    "min_length min_new_tokens min_p no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule "
    "num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states output_logits output_scores "
    "pad_token_id penalty_alpha prefill_chunk_size prompt_lookup_num_tokens remove_invalid_values renormalize_logits "
    "repetition_penalty return_dict_in_generate sequence_bias speculation_type stop_strings suppress_tokens "
    "target_lookbehind temperature token_healing top_h top_k top_p transformers_version typical_p use_cache use_mtp "
    "watermarking_config".split()
)
# Other keys that change nothing in the forward pass this project builds.
INERT_KEYS = GENERATION_KEYS | frozenset(
    "architectures model_type torch_dtype dtype attention_dropout initializer_range unk_token_id sep_token_id "
    "is_llama_config transformers.js_config return_dict torchscript task_specific_params problem_type "
    "finetuning_task id2label label2id prefix tokenizer_class chunk_size_feed_forward is_decoder is_encoder_decoder "
    "unsloth_version unsloth_fixed attn_implementation resid_pdrop hidden_dropout pretraining_tp "
    "max_sequence_length model_max_length tf_legacy_loss use_bfloat16 output_past embd_pdrop attn_pdrop "
    "classifier_dropout num_logits_to_keep".split()
)
