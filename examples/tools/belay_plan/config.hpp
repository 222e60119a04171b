// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The sizes of a model from its Hugging Face config.json. Only fields that sizes follow from are read; one that is
// missing, or makes no sense, is refused with its name.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "input/bounded_json.hpp"
#include "input/json_fields.hpp"
#include "input/regular_file.hpp"
#include "tools/belay_plan/architecture.hpp"
#include "tools/belay_plan/presets.hpp"

namespace belay_plan {

/// Bytes of a config.json that are read.
inline constexpr std::uint64_t largest_config = std::uint64_t{1} << 20;
/// Parameters of a model that is planned: bytes of all its states are numbers that a double holds.
inline constexpr double most_parameters = 281474976710656.0;

/// The text of a config.json, and what it is called in messages.
struct config_text {
  std::string text, source;
};

/// "tiny, small, ..."
[[nodiscard]] inline std::string presets_text() {
  std::string out;
  for (const preset& each : all_presets) out += (out.empty() ? "" : ", ") + std::string(each.name);
  return out;
}

/// The preset of the name `model`, or the file of that path. Throws belay::input_error where there is neither, and
/// belay::file_error for a file that cannot be read.
[[nodiscard]] inline config_text config_of(const std::string& model) {
  if (const preset* const found = find_preset(model)) return {std::string(found->config), model};
  std::error_code error;
  if (!std::filesystem::exists(model, error) && !error)
    throw belay::input_error(model + ": there is no such file, and no preset of that name; the presets are " +
                             presets_text());
  return {input::content_of(model, largest_config), model};
}

/// Reads the sizes of one kind of model.
class config_reader {
 public:
  /// Throws belay::file_error for what is no JSON, and belay::input_error with the field for sizes that cannot be.
  [[nodiscard]] static architecture read(const config_text& config) {
    const nlohmann::json values = input::json_parser<nlohmann::json>(config.source, config.text).parse();
    if (!values.is_object()) throw belay::input_error(config.source + ": is no JSON object");
    return config_reader(values, config.source).read();
  }

 private:
  config_reader(const nlohmann::json& values, const std::string& source) : in_(values, source) { out_.name = source; }

  [[nodiscard]] architecture read() {
    const nlohmann::json* const type = in_.find("model_type");
    if (type == nullptr) in_.refuse("model_type", std::string("is missing; it is one of ") + known);
    out_.type = type->is_string() ? type->get<std::string>() : "";
    if (out_.type == "gpt2")
      read_gpt2();
    else if (out_.type == "llama" || out_.type == "mistral")
      read_llama();
    else if (out_.type == "mixtral")
      read_mixtral();
    else if (out_.type == "deepseek_v2" || out_.type == "deepseek_v3")
      read_deepseek();
    else
      in_.refuse("model_type", "is " + input::shown(*type) + ", and belay-plan knows the sizes of " + known);
    check();
    return out_;
  }

  void read_gpt2() {
    const count hidden = out_.hidden = in_.count("n_embd");
    out_.vocabulary = in_.count("vocab_size");
    out_.layers = in_.count("n_layer");
    out_.positions = in_.count("n_positions");
    out_.position_parameters = out_.positions * hidden;
    out_.norm_parameters = 2 * hidden;
    out_.head = in_.holds("tie_word_embeddings", true) ? head_kind::tied : head_kind::own;
    const count heads = in_.count("n_head");
    if (hidden % heads != 0)
      in_.refuse("n_embd", "is " + std::to_string(hidden) + ", no multiple of n_head " + std::to_string(heads));
    out_.attention = {4 * hidden * hidden + 4 * hidden, 3 * hidden * hidden, hidden, hidden, hidden, hidden, 0, heads};
    const count width = in_.count("n_inner", 4 * hidden);
    out_.dense = {.width = width, .matrices = 2, .biases = width + hidden};
    out_.first_mixture = out_.layers;
  }

  // What all others call alike.
  void read_common() {
    out_.hidden = in_.count("hidden_size");
    out_.vocabulary = in_.count("vocab_size");
    out_.layers = in_.count("num_hidden_layers");
    out_.positions = in_.count("max_position_embeddings", 4096);
    out_.norm_parameters = out_.hidden;
    out_.head = in_.holds("tie_word_embeddings", false) ? head_kind::tied : head_kind::own;
    out_.first_mixture = out_.layers;
  }

  void read_grouped_attention() {
    const count hidden = out_.hidden, heads = in_.count("num_attention_heads");
    const count shared = in_.count("num_key_value_heads", heads);
    if (heads % shared != 0)
      in_.refuse("num_attention_heads",
                 "is " + std::to_string(heads) + ", no multiple of num_key_value_heads " + std::to_string(shared));
    if (in_.find("head_dim") == nullptr && hidden % heads != 0)
      in_.refuse("hidden_size",
                 "is " + std::to_string(hidden) + ", no multiple of num_attention_heads " + std::to_string(heads));
    const count dim = in_.count("head_dim", std::max<count>(hidden / heads, 1));
    const count queries = heads * dim, keys = shared * dim;
    const count biases = in_.holds("attention_bias", false) ? queries + 2 * keys + hidden : 0;
    out_.attention = {2 * hidden * (queries + keys) + biases, hidden * queries, queries, keys, keys, queries, 0, heads};
  }

  void read_llama() {
    read_common();
    read_grouped_attention();
    const count width = in_.count("intermediate_size");
    out_.dense = {.width = width, .biases = in_.holds("mlp_bias", false) ? 2 * width + out_.hidden : 0};
  }

  void read_mixtral() {
    read_common();
    read_grouped_attention();
    const count experts = in_.count("num_local_experts");
    out_.mixture = {.width = in_.count("intermediate_size"),
                    .experts = experts,
                    .experts_per_token = in_.count("num_experts_per_tok"),
                    .router_parameters = experts * out_.hidden};
    out_.first_mixture = 0;
    expect_choices("num_local_experts");
  }

  // Queries, keys and values from latents; some layers without experts, and experts that all tokens visit.
  void read_deepseek() {
    read_common();
    const count hidden = out_.hidden, heads = in_.count("num_attention_heads");
    const count query_latent = in_.count_or_none("q_lora_rank", 0), latent = in_.count("kv_lora_rank");
    const count rotary = in_.count("qk_rope_head_dim"), plain = in_.count("qk_nope_head_dim");
    const count value = in_.count("v_head_dim");
    const count queries = heads * (plain + rotary), from_latent = heads * (plain + value);
    const count bias = in_.holds("attention_bias", false) ? query_latent + latent + rotary + hidden : 0;
    const count of_queries =
        query_latent == 0 ? hidden * queries : hidden * query_latent + query_latent + query_latent * queries;
    out_.attention.parameters =
        of_queries + hidden * (latent + rotary) + latent + latent * from_latent + heads * value * hidden + bias;
    out_.attention.largest = std::max({query_latent == 0 ? hidden * queries : query_latent * queries,
                                       latent * from_latent, heads * value * hidden, hidden * query_latent});
    out_.attention.query_width = out_.attention.key_width = queries;
    out_.attention.value_width = out_.attention.context_width = heads * value;
    out_.attention.latent_width = query_latent + latent + rotary;
    out_.attention.heads = heads;
    out_.dense = {.width = in_.count("intermediate_size")};
    const count experts = in_.count_or_none("n_routed_experts", 0);
    if (experts == 0) return;
    out_.mixture = {.width = in_.count("moe_intermediate_size"),
                    .experts = experts,
                    .experts_per_token = in_.count("num_experts_per_tok"),
                    .router_parameters = experts * hidden};
    out_.mixture.shared_width = in_.count_or_none("n_shared_experts", 0) * out_.mixture.width;
    // Its router has a bias that balances experts.
    if (out_.type == "deepseek_v3") out_.mixture.router_parameters += experts;
    out_.first_mixture = in_.count_or_none("first_k_dense_replace", 0);
    out_.mixture_every = in_.count("moe_layer_freq", 1);
    expect_choices("n_routed_experts");
    if (const count predicted = in_.count_or_none("num_nextn_predict_layers", 0); predicted > 0)
      out_.left_out = "num_nextn_predict_layers " + std::to_string(predicted) +
                      ": the module that predicts several tokens is not counted and not planned";
  }

  void expect_choices(const char* experts) const {
    if (out_.mixture.experts_per_token > out_.mixture.experts)
      in_.refuse("num_experts_per_tok", "is " + std::to_string(out_.mixture.experts_per_token) + ", there are " +
                                            experts + " " + std::to_string(out_.mixture.experts));
  }

  // Sizes of which no product wraps round, and that a plan can be made of.
  void check() const {
    const auto real = [](count value) { return static_cast<double>(value); };
    constexpr count most = count{1} << 24U;
    if (out_.layers > 65'536)
      in_.refuse(out_.type == "gpt2" ? "n_layer" : "num_hidden_layers",
                 "is " + std::to_string(out_.layers) + ", at most 65536 are planned");
    const attention_part& heads = out_.attention;
    for (const count width : {out_.vocabulary, out_.hidden, out_.dense.width, out_.mixture.width, out_.mixture.experts,
                              out_.mixture.shared_width, heads.query_width, heads.key_width, heads.context_width,
                              heads.latent_width, out_.positions})
      if (width > most)
        in_.refuse("vocab_size, hidden_size and the widths and heads of its layers",
                   "are at most 16777216; there is one of " + std::to_string(width));
    const double layer = real(heads.parameters) + real(out_.mixture.matrices * out_.hidden) *
                                                      (real(out_.dense.width) + real(out_.mixture.shared_width) +
                                                       real(out_.mixture.width) * real(out_.mixture.experts));
    if (real(out_.layers) * layer > most_parameters)
      in_.refuse("hidden_size", "and the other sizes give more than 281474976710656 parameters, which is not planned");
  }

  static constexpr const char* known = "gpt2, llama, mistral, mixtral, deepseek_v2 and deepseek_v3";

  input::json_fields in_;
  architecture out_;
};

}  // namespace belay_plan
