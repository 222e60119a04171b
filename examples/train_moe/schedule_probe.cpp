// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/schedule_probe.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "belay/device/stream.hpp"
#include "belay/parallel/schedule.hpp"

namespace train_moe {

bool is_probed(const command_line& line) {
  const options& run = line.run;
  return line.choice.any() && line.choice.tables.size() > 1 && line.schedule_costs.empty() && run.steps > 0 &&
         run.streams.policy != belay::stream_policy::adversarial;  // which is late on purpose
}

command_line probe_of(const command_line& line) {
  command_line out = line;
  options& run = out.run;
  const auto stages = static_cast<std::size_t>(run.mesh.pipeline);
  run.model.layers = out.config.num_hidden_layers = stages;
  const std::size_t micro_batches = std::min(stages, batch_shape(run).micro_batches);
  run.micro_batches = micro_batches * static_cast<std::size_t>(run.mesh.data);
  const auto halves = belay::schedule::named_schedule::of("zb-h1", {});
  run.schedule = halves.least_micro_batches(stages) <= micro_batches ? "zb-h1" : "1f1b";
  run.schedule_text.clear();
  run.stage_layers.clear();
  run.overlap_pairs = false;
  run.steps = 2;
  run.cycle = {};
  run.checkpoint = {};
  for (belay::tier options::*const each :
       {&options::optimizer_tier, &options::parameter_tier, &options::gradient_tier, &options::phase_tier})
    run.*each = belay::tier::device;
  out.choice = {};
  for (std::string* const each :
       {&out.json, &out.tensorboard, &out.report, &out.trace, &out.eval, &out.export_to, &out.import_from})
    each->clear();
  out.print_plan = command_line::plan_output::none;
  return out;
}

layer_costs costs_of_probe(std::string_view text, std::size_t stages, std::size_t layers) {
  const layer_costs probed = costs_of_text(text, stages);
  layer_costs out;
  out.message = probed.message;
  out.layers.assign(layers, probed.layers[stages > 2 ? 1 : 0]);
  out.layers.front() = probed.layers.front();
  if (layers > 1) out.layers.back() = probed.layers.back();
  return out;
}

struct probed_costs::shared_text {
  static constexpr std::size_t most_bytes = std::size_t{1} << 20U;
  std::atomic<bool> claimed = false;
  std::size_t bytes = 0;
  char text[most_bytes];  // untouched pages take no memory
};

probed_costs::probed_costs() {
  void* const at =
      ::mmap(nullptr, sizeof(shared_text), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  shared_ = ::new (at) shared_text;
}

probed_costs::~probed_costs() { ::munmap(shared_, sizeof(shared_text)); }

void probed_costs::set(std::string_view text) noexcept {
  if (text.size() > shared_text::most_bytes || shared_->claimed.exchange(true)) return;
  std::copy(text.begin(), text.end(), shared_->text);
  shared_->bytes = text.size();
}

std::optional<std::string> probed_costs::text() const {
  if (shared_->bytes == 0) return std::nullopt;
  return std::string(shared_->text, shared_->bytes);
}

}  // namespace train_moe
