// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Models by name, each as the fields of its published config.json that sizes follow from; `tiny` and `small` are those
// of train_moe.
#pragma once

#include <string_view>

namespace belay_plan {

struct preset {
  std::string_view name;
  std::string_view config;
};

inline constexpr preset all_presets[] = {
    {"tiny", R"({"model_type": "mixtral", "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256,
      "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "num_local_experts": 8,
      "num_experts_per_tok": 2, "max_position_embeddings": 128})"},
    {"small", R"({"model_type": "mixtral", "vocab_size": 256, "hidden_size": 256, "intermediate_size": 512,
      "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "num_local_experts": 8,
      "num_experts_per_tok": 2, "max_position_embeddings": 128})"},
    {"gpt2", R"({"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12,
      "n_head": 12})"},
    {"llama-3-8b", R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
      "tie_word_embeddings": false})"},
    {"llama-3-70b", R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672,
      "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 8192,
      "tie_word_embeddings": false})"},
    {"mixtral-8x7b", R"({"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
      "num_experts_per_tok": 2, "max_position_embeddings": 32768, "sliding_window": null,
      "tie_word_embeddings": false})"},
    {"deepseek-v2-lite", R"({"model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048,
      "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16,
      "num_key_value_heads": 16, "n_shared_experts": 2, "n_routed_experts": 64, "num_experts_per_tok": 6,
      "first_k_dense_replace": 1, "moe_layer_freq": 1, "q_lora_rank": null, "kv_lora_rank": 512,
      "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "max_position_embeddings": 163840,
      "tie_word_embeddings": false})"},
    {"deepseek-v3", R"({"model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168,
      "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
      "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256, "num_experts_per_tok": 8,
      "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
      "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "max_position_embeddings": 163840,
      "num_nextn_predict_layers": 1, "tie_word_embeddings": false})"},
};

/// The preset of that name; nullptr where there is none.
[[nodiscard]] constexpr const preset* find_preset(std::string_view name) noexcept {
  for (const preset& each : all_presets)
    if (each.name == name) return &each;
  return nullptr;
}

}  // namespace belay_plan
