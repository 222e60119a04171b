// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/model_config.cpp"

#include <doctest/doctest.h>

namespace {

using train_moe::model_config;

nlohmann::json good() { return nlohmann::json::parse(train_moe::config_json(model_config{}, 128)); }

void refused(const char* field, const nlohmann::json& value, const char* why) {
  nlohmann::json config = good();
  config[field] = value;
  CAPTURE(config[field].dump());
  try {
    static_cast<void>(train_moe::parse_model(config.dump(), 128, "model.json"));
    FAIL("accepted");
  } catch (const belay::input_error& error) {
    const std::string text = error.what();
    CAPTURE(text);
    CHECK(text.find(std::string("model.json: ") + why) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("a config that is written reads back, and carries the sequence as its longest position") {
  model_config config = train_moe::load_model("small", 128);
  config.num_key_value_heads = 2;
  config.rope_theta = 12345.5;
  config.router_aux_loss_coef = 0.1;
  config.max_position_embeddings = 77;
  const std::string text = train_moe::config_json(config, 77);
  CHECK(train_moe::parse_model(text, 77, "f") == config);
  CHECK(train_moe::config_json(train_moe::parse_model(text, 77, "f"), 77) == text);
  CHECK(text.find("\"rms_norm_eps\": 1e-05") != std::string::npos);
  CHECK(text.find("\"max_position_embeddings\": 77") != std::string::npos);
  CHECK(text.find("\"sliding_window\": null") != std::string::npos);
}

TEST_CASE("tiny and small are what they are said to be") {
  const model_config tiny = train_moe::load_model("tiny", 128);
  CHECK(tiny == model_config{});
  const model_config small = train_moe::load_model("small", 64);
  CHECK(small.hidden_size == 256);
  CHECK(small.intermediate_size == 512);
  CHECK(small.num_hidden_layers == 8);
  CHECK(small.num_attention_heads == 8);
  CHECK(small.head_dim == 32);
  CHECK(small.max_position_embeddings == 64);
  CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::load_model("/nowhere/large", 128)),
                       doctest::Contains("/nowhere/large: cannot be opened"), belay::file_error);
}

TEST_CASE("old and new places of rope_theta are honoured, and 1e6 without them") {
  nlohmann::json config = good();
  config.erase("rope_parameters");
  CHECK(train_moe::parse_model(config.dump(), 128, "f").rope_theta == 1e6);
  config["rope_theta"] = 10000;
  config["rope_scaling"] = nullptr;
  CHECK(train_moe::parse_model(config.dump(), 128, "f").rope_theta == 10000);
  config["rope_parameters"] = {{"rope_theta", 500.0}, {"rope_type", "default"}};
  CHECK(train_moe::parse_model(config.dump(), 128, "f").rope_theta == 500);
}

TEST_CASE("what cannot be computed as transformers would is refused by the field's name") {
  refused("rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "yarn"}, {"factor", 4.0}}, "rope_parameters.");
  refused("rope_scaling", {{"type", "linear"}, {"factor", 2.0}}, "rope_scaling.type is \"linear\"");
  refused("rope_parameters", {{"rope_theta", -1}, {"rope_type", "default"}},
          "rope_theta is -1.0, a number larger than 1 is needed");
  refused("sliding_window", 127, "sliding_window is 127, shorter than the sequence of 128");
  refused("tie_word_embeddings", true, "tie_word_embeddings is true");
  refused("hidden_act", "gelu", "hidden_act is \"gelu\"");
  refused("model_type", "llama", "model_type is \"llama\"");
  refused("vocab_size", 255, "vocab_size is 255");
  refused("num_key_value_heads", 3, "num_attention_heads is 4, no multiple of num_key_value_heads 3");
  refused("head_dim", 31, "head_dim is 31");
  refused("num_experts_per_tok", 9, "num_experts_per_tok is 9");
  refused("num_experts_per_tok", 0, "num_experts_per_tok is 0");
  refused("hidden_size", -128, "hidden_size is -128");
  refused("hidden_size", 128.0, "hidden_size is 128.0");
  refused("hidden_size", "128", "hidden_size is \"128\"");
  refused("num_hidden_layers", nullptr, "num_hidden_layers is missing");
  refused("num_hidden_layers", 1e300, "num_hidden_layers is 1e+300");
  refused("rms_norm_eps", 0, "rms_norm_eps is 0.0, a number larger than 0 and smaller than 1 is needed");
  refused("rms_norm_eps", "x", "rms_norm_eps is \"x\"");
  refused("router_aux_loss_coef", -1, "router_aux_loss_coef is -1.0, 0 or more is needed");
  refused("initializer_range", 0, "initializer_range is 0.0, a number larger than 0 is needed");
  nlohmann::json config = good();
  config.erase("head_dim");
  config["hidden_size"] = 130;
  CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::parse_model(config.dump(), 128, "f")),
                       doctest::Contains("f: hidden_size is 130, no multiple of num_attention_heads 4"),
                       belay::input_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::parse_model("{", 128, "f")), doctest::Contains("f: is cut off"),
                       belay::file_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::parse_model("[]", 128, "f")), doctest::Contains("f: is no JSON"),
                       belay::input_error);
}

TEST_CASE("numbers that are none, or that nothing can hold, are named with their field and value") {
  const auto with = [](const std::string& number) {
    std::string text = good().dump();
    const std::string field = "\"hidden_size\":128";
    text.replace(text.find(field), field.size(), "\"hidden_size\":" + number);
    try {
      static_cast<void>(train_moe::parse_model(text, 128, "f"));
    } catch (const belay::error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto begins = [](const std::string& text, const std::string& part) {
    CAPTURE(text);
    return text.starts_with("belay: f: " + part);
  };
  const std::string needed = ", a whole number from 1 to 2147483648 is needed";
  CHECK(begins(with("1e999"), "hidden_size is 1e999, which is beyond what a number can hold (byte "));
  CHECK(begins(with("-1e999"), "hidden_size is -1e999, which is beyond what a number can hold"));
  CHECK(begins(with("NaN"), "is no JSON: hidden_size is NaN (byte "));
  CHECK(begins(with("-Infinity"), "is no JSON: hidden_size is -Infinity (byte "));
  CHECK(begins(with("0x10"), "is no JSON: "));
  CHECK(begins(with("-3"), "hidden_size is -3" + needed));
  CHECK(begins(with("2.5"), "hidden_size is 2.5" + needed));
  CHECK(begins(with("2147483649"), "hidden_size is 2147483649" + needed));
  CHECK(begins(with("10000000000000000000000"), "hidden_size is 1e+22" + needed));
  CHECK(begins(with("[1,NaN]"), "is no JSON: hidden_size[] is NaN"));
  CHECK(begins(with(std::string(500, '1')), "hidden_size is " + std::string(40, '1') + "..., which is beyond"));
  const std::string nested = with("\"" + std::string(5000, 'x') + "\"");
  CHECK(begins(nested, "hidden_size is \"" + std::string(59, 'x') + "..." + needed));
}

TEST_CASE("a field that is there twice is refused, however deep and in whichever spelling, and named") {
  const auto with = [](const std::string& more) {
    std::string text = good().dump();
    return text.insert(text.size() - 1, more);
  };
  const auto refuses = [&](const std::string& more, const char* why) {
    CAPTURE(more);
    CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::parse_model(with(more), 128, "f")), doctest::Contains(why),
                         belay::file_error);
  };
  refuses(R"(,"rms_norm_eps":0.5)", "f: rms_norm_eps is there twice (byte ");
  refuses(R"(,"rms_norm_\u0065ps":1e-05)", "f: rms_norm_eps is there twice");
  refuses(R"(,"of_nobody":1,"of_nobody":1)", "f: of_nobody is there twice");
  refuses(R"(,"a":[{"x":1},{"x":1,"y":{"z":0,"z":0}}])", "f: a[].y.z is there twice");
  CHECK_NOTHROW(static_cast<void>(train_moe::parse_model(with(R"(,"a":[{"x":1},{"x":{"x":1}}])"), 128, "f")));
}

TEST_CASE("a value that nests deeper than any config is refused, however deep, and one that is not is shown") {
  for (const std::size_t depth : {64UL, 65UL, 1000UL, 400'000UL}) {
    std::string text = good().dump();
    text.replace(text.find("\"silu\""), 6, std::string(depth, '[') + std::string(depth, ']'));
    CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::parse_model(text, 128, "f")),
                         doctest::Contains("f: nests deeper than 64 levels (byte "), belay::file_error);
  }
  refused("hidden_act", nlohmann::json::parse(std::string(63, '[') + std::string(63, ']')), "hidden_act is [[[[[[");
}

TEST_CASE("a config that no file could hold is refused before anything is listed for it") {
  constexpr std::uint64_t most = std::uint64_t{1} << 31;
  refused("num_hidden_layers", most,
          "num_hidden_layers is 2147483648 and num_local_experts 8, which is 66571993091 tensors; a file holds at most "
          "1048576");
  refused("num_local_experts", most,
          "num_hidden_layers is 4 and num_local_experts 2147483648, which is 25769803807 tensors");
  refused("vocab_size", most * 64, "vocab_size is 137438953472, a whole number");
  nlohmann::json config = good();
  for (const char* field : {"vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim"}) {
    config[field] = most;
  }
  CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::parse_model(config.dump(), 128, "f")),
                       doctest::Contains("f: hidden_size is 2147483648, vocab_size 2147483648, "), belay::input_error);
}

TEST_CASE("what a terminal would obey is escaped in refusals") {
  refused("hidden_act", "\x1b[31m\u009b2J\nforged", "hidden_act is \"\\u001b[31m\\u009b2J\\nforged\": only");
  refused("rope_parameters", {{"\x1b[31m", 1}}, "rope_parameters.\\x1b[31m scales positions");
}

TEST_CASE("a window as long as the sequence, and every required field, are needed and enough") {
  nlohmann::json config = good();
  config["sliding_window"] = 128;
  CHECK_NOTHROW(static_cast<void>(train_moe::parse_model(config.dump(), 128, "f")));
  for (const char* field : {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads", "num_key_value_heads", "num_local_experts", "num_experts_per_tok"}) {
    nlohmann::json without = good();
    without.erase(field);
    CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::parse_model(without.dump(), 128, "f")),
                         doctest::Contains((std::string(field) + " is missing").c_str()), belay::input_error);
  }
}

TEST_CASE("models are compared by what makes them models") {
  model_config a;
  model_config b;
  b.router_aux_loss_coef = 0.5;
  b.max_position_embeddings = 5;
  CHECK(train_moe::differences(a, b).empty());
  b.hidden_size = 256;
  b.rope_theta = 1e4;
  CHECK(train_moe::differences(a, b) == "hidden_size 128 and 256, rope_theta 1000000.0 and 10000.0");
}

TEST_CASE("the list of tensors is Hugging Face's") {
  model_config config;
  config.num_key_value_heads = 2;
  const auto all = train_moe::tensors_of(config);
  CHECK(all.size() == 3 + 4 * (7 + 3 * 8));
  const auto shape = [&](const std::string& name) -> std::vector<std::uint64_t> {
    for (const auto& each : all) {
      if (each.name == name) return each.shape;
    }
    FAIL(name);
    return {};
  };
  using extents = std::vector<std::uint64_t>;
  CHECK(shape("model.embed_tokens.weight") == extents{256, 128});
  CHECK(shape("model.layers.3.self_attn.q_proj.weight") == extents{128, 128});
  CHECK(shape("model.layers.0.self_attn.k_proj.weight") == extents{64, 128});
  CHECK(shape("model.layers.0.block_sparse_moe.gate.weight") == extents{8, 128});
  CHECK(shape("model.layers.1.block_sparse_moe.experts.7.w2.weight") == extents{128, 256});
  CHECK(shape("model.layers.1.block_sparse_moe.experts.7.w3.weight") == extents{256, 128});
  CHECK(shape("model.layers.1.post_attention_layernorm.weight") == extents{128});
  CHECK(shape("lm_head.weight") == extents{256, 128});
}
