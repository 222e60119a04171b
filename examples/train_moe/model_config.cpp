// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "input/bounded_json.hpp"
#include "input/json_fields.hpp"
#include "input/regular_file.hpp"
#include "train_moe/hugging_face.hpp"

namespace train_moe {

namespace {

using belay::input_error;
using fields = input::json_fields;
using nlohmann::json;

// Old files have rope_theta at the top and rope_scaling beside it, new ones both in rope_parameters.
double rope_theta_of(const fields& in) {
  double theta = in.number("rope_theta", 1e6);
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const json* rope = in.find(name);
    if (rope == nullptr) continue;
    if (!rope->is_object()) in.refuse(name, "is " + input::shown(*rope) + ", an object is needed");
    for (const char* kind : {"rope_type", "type"}) {
      const auto type = rope->find(kind);
      if (type != rope->end() && !type->is_null() && *type != "default") {
        in.refuse(std::string(name) + "." + kind,
                  "is " + input::shown(*type) + ": only unscaled positions are supported");
      }
    }
    for (const auto& [key, value] : rope->items()) {
      if (key == "rope_type" || key == "type" || value.is_null()) continue;
      if (key == "partial_rotary_factor" && value == 1.0) continue;
      const std::string field = std::string(name) + "." + belay::printable_start(key, 60);
      if (key != "rope_theta") in.refuse(field, "scales positions, which is not supported");
      if (!value.is_number()) in.refuse(field, "is " + input::shown(value) + ", a number is needed");
      theta = value.get<double>();
    }
  }
  in.require(theta > 1, "rope_theta", theta, "a number larger than 1");
  return theta;
}

void check_shapes(const fields& in, const model_config& config) {
  if (config.vocab_size < 256) {
    in.refuse("vocab_size", "is " + std::to_string(config.vocab_size) + ", text by bytes needs 256");
  }
  const std::size_t heads = config.num_attention_heads;
  if (heads % config.num_key_value_heads != 0) {
    in.refuse("num_attention_heads", "is " + std::to_string(heads) + ", no multiple of num_key_value_heads " +
                                         std::to_string(config.num_key_value_heads));
  }
  if (config.head_dim % 2 != 0) {
    in.refuse("head_dim", "is " + std::to_string(config.head_dim) + ", rotary positions need pairs");
  }
  if (config.num_experts_per_tok > config.num_local_experts) {
    in.refuse("num_experts_per_tok", "is " + std::to_string(config.num_experts_per_tok) +
                                         ", there are num_local_experts " + std::to_string(config.num_local_experts));
  }
  in.require(config.rms_norm_eps > 0 && config.rms_norm_eps < 1, "rms_norm_eps", config.rms_norm_eps,
             "a number larger than 0 and smaller than 1");
  in.require(config.router_aux_loss_coef >= 0, "router_aux_loss_coef", config.router_aux_loss_coef, "0 or more");
  in.require(config.initializer_range > 0, "initializer_range", config.initializer_range, "a number larger than 0");
}

// What no file can hold is not listed, planned or allocated either.
void check_size(const fields& in, const model_config& config) {
  namespace safetensors = belay::safetensors;
  const std::size_t layers = config.num_hidden_layers;
  const std::size_t experts = config.num_local_experts;
  const std::string counts = std::to_string(layers) + " and num_local_experts " + std::to_string(experts);
  if (tensor_count(config) > safetensors::most_tensors) {
    in.refuse("num_hidden_layers", "is " + counts + ", which is " + std::to_string(tensor_count(config)) +
                                       " tensors; a file holds at most " + std::to_string(safetensors::most_tensors));
  }
  const auto real = [](std::size_t value) { return static_cast<double>(value); };
  const double heads = 2 * real(config.num_attention_heads) + 2 * real(config.num_key_value_heads);
  const double layer = heads * real(config.head_dim) + real(experts) * (3 * real(config.intermediate_size) + 1) + 2;
  const double rows = 2 * real(config.vocab_size) + real(layers) * layer + 1;
  if (real(config.hidden_size) * rows * sizeof(float) > real(safetensors::largest_number)) {
    in.refuse("hidden_size", "is " + std::to_string(config.hidden_size) + ", vocab_size " +
                                 std::to_string(config.vocab_size) + ", intermediate_size " +
                                 std::to_string(config.intermediate_size) + ", num_attention_heads " +
                                 std::to_string(config.num_attention_heads) + ", head_dim " +
                                 std::to_string(config.head_dim) + ", num_hidden_layers " + counts +
                                 ": a file holds at most " + std::to_string(safetensors::largest_number) + " bytes");
  }
}

}  // namespace

model_config parse_model(const std::string& text, std::size_t sequence, const std::string& source) {
  const json values = input::json_parser<json>(source, text).parse();
  if (!values.is_object()) throw input_error(source + ": is no JSON object");
  const fields in(values, source);
  if (in.find("model_type") == nullptr) in.refuse("model_type", "is missing");
  in.same("model_type", "mixtral", "only mixtral is supported");
  in.same("hidden_act", "silu", "only silu is supported");
  in.same("tie_word_embeddings", false, "a tied embedding is not supported");
  in.same("attention_dropout", 0.0, "dropout is not supported");
  in.same("router_jitter_noise", 0.0, "jitter is not supported");
  const std::size_t window = in.count("sliding_window", sequence);
  if (window < sequence) {
    in.refuse("sliding_window",
              "is " + std::to_string(window) + ", shorter than the sequence of " + std::to_string(sequence));
  }
  model_config config;
  config.vocab_size = in.count("vocab_size");
  config.hidden_size = in.count("hidden_size");
  config.intermediate_size = in.count("intermediate_size");
  config.num_hidden_layers = in.count("num_hidden_layers");
  config.num_attention_heads = in.count("num_attention_heads");
  config.num_key_value_heads = in.count("num_key_value_heads");
  if (in.find("head_dim") == nullptr && config.hidden_size % config.num_attention_heads != 0) {
    in.refuse("hidden_size", "is " + std::to_string(config.hidden_size) + ", no multiple of num_attention_heads " +
                                 std::to_string(config.num_attention_heads));
  }
  config.head_dim = in.count("head_dim", config.hidden_size / config.num_attention_heads);
  config.num_local_experts = in.count("num_local_experts");
  config.num_experts_per_tok = in.count("num_experts_per_tok");
  config.max_position_embeddings = in.count("max_position_embeddings", sequence);
  config.rms_norm_eps = in.number("rms_norm_eps", 1e-5);
  config.rope_theta = rope_theta_of(in);
  config.router_aux_loss_coef = in.number("router_aux_loss_coef", 0.01);
  config.initializer_range = in.number("initializer_range", 0.02);
  check_shapes(in, config);
  check_size(in, config);
  return config;
}

model_config load_model(const std::string& model, std::size_t sequence) {
  model_config config;
  config.max_position_embeddings = sequence;
  if (model == "tiny") return config;
  if (model == "small") {
    config.hidden_size = 256;
    config.intermediate_size = 512;
    config.num_hidden_layers = 8;
    config.num_attention_heads = 8;
    config.num_key_value_heads = 8;
    return config;
  }
  if (std::error_code wrong;
      model.find_first_of("./") == std::string::npos && !std::filesystem::exists(model, wrong) && !wrong)
    throw belay::input_error("--model is tiny, small or a Hugging Face config.json, not '" + belay::printable(model) +
                             "'");
  return parse_model(input::content_of(model, largest_config), sequence, model);
}

std::string config_json(const model_config& config, std::size_t sequence, belay::dtype type) {
  nlohmann::ordered_json out;
  out["architectures"] = {"MixtralForCausalLM"};
  out["model_type"] = "mixtral";
  out["vocab_size"] = config.vocab_size;
  out["hidden_size"] = config.hidden_size;
  out["intermediate_size"] = config.intermediate_size;
  out["num_hidden_layers"] = config.num_hidden_layers;
  out["num_attention_heads"] = config.num_attention_heads;
  out["num_key_value_heads"] = config.num_key_value_heads;
  out["head_dim"] = config.head_dim;
  out["num_local_experts"] = config.num_local_experts;
  out["num_experts_per_tok"] = config.num_experts_per_tok;
  out["max_position_embeddings"] = sequence;
  out["rms_norm_eps"] = config.rms_norm_eps;
  out["rope_parameters"] = {{"rope_theta", config.rope_theta}, {"rope_type", "default"}};
  out["hidden_act"] = "silu";
  out["initializer_range"] = config.initializer_range;
  out["router_aux_loss_coef"] = config.router_aux_loss_coef;
  out["sliding_window"] = nullptr;
  out["tie_word_embeddings"] = false;
  out["dtype"] = type == belay::dtype::bf16 ? "bfloat16" : "float32";
  return out.dump(2) + "\n";
}

std::string differences(const model_config& a, const model_config& b) {
  std::string text;
  const auto compare = [&text](const char* field, auto x, auto y) {
    if (x == y) return;
    const auto plain = [](auto value) { return json(value).dump(); };
    text += (text.empty() ? "" : ", ") + std::string(field) + " " + plain(x) + " and " + plain(y);
  };
  compare("vocab_size", a.vocab_size, b.vocab_size);
  compare("hidden_size", a.hidden_size, b.hidden_size);
  compare("intermediate_size", a.intermediate_size, b.intermediate_size);
  compare("num_hidden_layers", a.num_hidden_layers, b.num_hidden_layers);
  compare("num_attention_heads", a.num_attention_heads, b.num_attention_heads);
  compare("num_key_value_heads", a.num_key_value_heads, b.num_key_value_heads);
  compare("head_dim", a.head_dim, b.head_dim);
  compare("num_local_experts", a.num_local_experts, b.num_local_experts);
  compare("num_experts_per_tok", a.num_experts_per_tok, b.num_experts_per_tok);
  compare("rms_norm_eps", a.rms_norm_eps, b.rms_norm_eps);
  compare("rope_theta", a.rope_theta, b.rope_theta);
  return text;
}

std::uint64_t tensor_count(const model_config& config) noexcept {
  return 3 + config.num_hidden_layers * (7 + 3 * std::uint64_t{config.num_local_experts});
}

std::vector<belay::safetensors::declaration> tensors_of(const model_config& config, belay::dtype type) {
  using belay::safetensors::stored_type;
  std::vector<belay::safetensors::declaration> all;
  const stored_type stored = type == belay::dtype::bf16 ? stored_type::bf16 : stored_type::f32;
  const auto add = [&all, stored](std::string name, std::vector<std::uint64_t> shape) {
    all.push_back({std::move(name), stored, std::move(shape)});
  };
  const std::uint64_t hidden = config.hidden_size;
  const std::uint64_t width = config.intermediate_size;
  const std::uint64_t queries = config.num_attention_heads * config.head_dim;
  const std::uint64_t keys = config.num_key_value_heads * config.head_dim;
  add("model.embed_tokens.weight", {config.vocab_size, hidden});
  for (std::size_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    add(prefix + "input_layernorm.weight", {hidden});
    add(prefix + "self_attn.q_proj.weight", {queries, hidden});
    add(prefix + "self_attn.k_proj.weight", {keys, hidden});
    add(prefix + "self_attn.v_proj.weight", {keys, hidden});
    add(prefix + "self_attn.o_proj.weight", {hidden, queries});
    add(prefix + "post_attention_layernorm.weight", {hidden});
    add(prefix + "block_sparse_moe.gate.weight", {config.num_local_experts, hidden});
    for (std::size_t expert = 0; expert < config.num_local_experts; ++expert) {
      const std::string inner = prefix + "block_sparse_moe.experts." + std::to_string(expert) + ".";
      add(inner + "w1.weight", {width, hidden});
      add(inner + "w2.weight", {hidden, width});
      add(inner + "w3.weight", {width, hidden});
    }
  }
  add("model.norm.weight", {hidden});
  add("lm_head.weight", {config.vocab_size, hidden});
  return all;
}

}  // namespace train_moe
