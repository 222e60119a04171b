// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/run_state.hpp"

#include <nlohmann/json.hpp>

#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "input/bounded_json.hpp"

namespace train_moe {

namespace {

using belay::input_error;
using nlohmann::ordered_json;

std::string hash_of(const corpus& text) {
  const std::span<const char> bytes = text.bytes();
  return std::to_string(belay::content_hash().add_bytes(bytes.data(), bytes.size()).value());
}

nlohmann::json parsed(std::string_view text, const std::string& source) {
  try {
    nlohmann::json values = input::json_parser<nlohmann::json>(source, text).parse();
    if (values.is_object()) return values;
  } catch (const belay::file_error&) {
  }
  throw input_error(source + ": the state of train_moe in it is no JSON object");
}

template <class T>
T field(const nlohmann::json& values, const char* name, const std::string& source) {
  try {
    return values.at(name).get<T>();
  } catch (const nlohmann::json::exception&) {
    throw input_error(source + ": the state of train_moe in it has no field " + name);
  }
}

}  // namespace

std::string run_state::save() const {
  const options& run = line_->run;
  const std::size_t samples = run.micro_batches * run.micro_batch_size;
  return ordered_json{{"next_sample", step_ * samples},
                      {"global_batch", samples},
                      {"micro_batches", run.micro_batches},
                      {"sequence", run.sequence},
                      {"seed", run.seed},
                      {"corpus_bytes", text_->size()},
                      {"corpus_hash", hash_of(*text_)},
                      {"config", config_json(line_->config, run.sequence, run.dtype)}}
      .dump();
}

void run_state::load(std::string_view text) const {
  const options& run = line_->run;
  const std::string source = "--checkpoint " + run.checkpoint.folder;
  const nlohmann::json values = parsed(text, source);
  const auto expect = [&](const char* name, std::size_t now, const char* flag) {
    const auto saved = field<std::size_t>(values, name, source);
    if (saved != now)
      throw input_error(source + " was written with " + flag + " " + std::to_string(saved) + ", this run has " +
                        std::to_string(now) + ": a run goes on with the batch and the data that it began with");
  };
  const model_config saved =
      parse_model(field<std::string>(values, "config", source), field<std::size_t>(values, "sequence", source), source);
  if (const std::string apart = differences(saved, line_->config); !apart.empty())
    throw input_error(source + " and --model " + line_->model + " disagree: " + apart);
  expect("micro_batches", run.micro_batches, "--micro-batches");
  expect("global_batch", run.micro_batches * run.micro_batch_size, "--micro-batches x --micro-batch-size");
  expect("sequence", run.sequence, "--sequence");
  expect("seed", run.seed, "--seed");
  if (field<std::size_t>(values, "corpus_bytes", source) != text_->size() ||
      field<std::string>(values, "corpus_hash", source) != hash_of(*text_))
    throw input_error(source + " was written with another text: --data, or what --phases holds out of it, has changed");
}

described_model model_of_state(std::string_view text, const std::string& source) {
  const nlohmann::json values = parsed(text, source);
  described_model out;
  out.sequence = field<std::size_t>(values, "sequence", source);
  out.config = parse_model(field<std::string>(values, "config", source), out.sequence, source);
  return out;
}

}  // namespace train_moe
