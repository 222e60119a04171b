// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Values of flags that are more than a word or a number.
#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "input/flag_values.hpp"
#include "train_moe/command_line.hpp"

namespace train_moe {

namespace {

using belay::input_error;
using input::key_values;

}  // namespace

belay::tier parse_lower_tier(const std::string& text) {  // device: it names none
  for (const belay::tier each : {belay::tier::pinned, belay::tier::host, belay::tier::file})
    if (text == belay::name(each)) return each;
  return belay::tier::device;
}

belay::axes parse_mesh(const std::string& text) {
  belay::axes mesh;
  const std::map<std::string, int belay::axes::*> axes{{"pp", &belay::axes::pipeline},
                                                       {"dp", &belay::axes::data},
                                                       {"ep", &belay::axes::expert},
                                                       {"tp", &belay::axes::tensor}};
  for (const auto& [name, value] : key_values(text, "--mesh")) {
    const auto axis = axes.find(name);
    if (axis == axes.end()) throw input_error("--mesh: unknown axis '" + name + "'; the axes are pp, dp, ep and tp");
    int ranks = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), ranks);
    if (error != std::errc{} || end != value.data() + value.size() || ranks < 1) {
      throw input_error("--mesh: " + name + " needs a whole number of ranks, at least 1, got '" + value + "'");
    }
    mesh.*axis->second = ranks;
  }
  return mesh;
}

std::string mesh_text(const belay::axes& mesh) {
  return "pp=" + std::to_string(mesh.pipeline) + ",dp=" + std::to_string(mesh.data) +
         ",ep=" + std::to_string(mesh.expert) + ",tp=" + std::to_string(mesh.tensor);
}

phase_cycle parse_phases(const std::string& text) {
  std::vector<phase_cycle::cycle_entry> entries;
  for (const auto& [name, value] : key_values(text, "--phases")) {
    const auto which = std::find_if(belay::all_phases.begin(), belay::all_phases.end(),
                                    [&wanted = name](belay::phase each) { return wanted == belay::name(each); });
    if (which == belay::all_phases.end())
      throw input_error("--phases: unknown phase '" + name + "'; the phases are train, eval and rollout");
    std::size_t count = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
    if (error != std::errc{} || end != value.data() + value.size() || count < 1 || count > 1'000'000'000)
      throw input_error("--phases: " + name + " needs a whole number from 1 to 1000000000, got '" + value + "'");
    entries.push_back({*which, count});
  }
  if (entries.front().which != belay::phase::train)
    throw input_error("--phases begins with train, as in train=4,eval=1,rollout=1; got '" + text + "'");
  return phase_cycle(std::move(entries));
}

// optimizer:pinned,activations: each once, in the tier that it names or in `otherwise`.
void parse_offload(const std::string& text, const std::string& otherwise, options& run) {
  for (std::size_t first = 0; first <= text.size();) {
    const std::size_t end = std::min(text.find(',', first), text.size());
    const std::string item = text.substr(first, end - first);
    first = end + 1;
    const std::size_t colon = std::min(item.find(':'), item.size());
    const std::string where = colon < item.size() ? item.substr(colon + 1) : otherwise;
    const auto* const what = std::find_if(std::begin(all_offloadable), std::end(all_offloadable),
                                          [&](const offloadable& each) { return item.substr(0, colon) == each.name; });
    if (what == std::end(all_offloadable)) {
      std::string known;
      for (const offloadable& each : all_offloadable) known += (known.empty() ? "" : ", ") + std::string(each.name);
      throw input_error("--offload " + text + ": this trainer offloads " + known +
                        ", as in optimizer:pinned,parameters; not '" + item + "'");
    }
    belay::tier& tier_of = run.*what->where_it_is;
    if (tier_of != belay::tier::device) throw input_error("--offload " + text + " names " + what->name + " twice");
    tier_of = parse_lower_tier(where);
    if (tier_of == belay::tier::device)
      throw input_error("--offload " + text + ": the tiers below device for " + what->name + " are " +
                        "pinned, host and file, not '" + where + "'");
  }
}

belay::budget parse_budget(const std::string& text, const std::string& flag) {
  belay::budget out;
  const std::map<std::string, double> units{
      {"", 1},     {"B", 1},    {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0},
      {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}};
  for (const auto& [name, value] : key_values(text, flag)) {
    std::size_t of = 0;
    while (of < belay::tier_count && name != belay::name(static_cast<belay::tier>(of))) ++of;
    if (of == belay::tier_count)
      throw input_error(flag + ": unknown tier '" + name + "'; the tiers are device, pinned, host and file");
    double number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    const auto unit = units.find(std::string(end, value.data() + value.size()));
    if (error == std::errc::result_out_of_range || (unit != units.end() && number * unit->second > 9e18))
      throw input_error(flag + ": " + name + "=" + value +
                        " is more than 9000000000000000000 bytes, which no machine has: without " + name +
                        " there is no limit");
    if (error != std::errc{} || unit == units.end() || !belay::is_finite(number) || number < 0) {
      throw input_error(flag + ": " + name + " needs bytes, as in 512MiB, 1GiB or 1000000, got '" + value + "'");
    }
    out[static_cast<belay::tier>(of)] = static_cast<std::size_t>(number * unit->second);
  }
  return out;
}

belay::traced_steps parse_trace_steps(const std::string& text) {
  belay::traced_steps out;
  const char* const end = text.data() + text.size();
  const auto [dash, first_error] = std::from_chars(text.data(), end, out.first);
  if (first_error == std::errc{} && dash != end && *dash == '-') {
    const auto [last, last_error] = std::from_chars(dash + 1, end, out.last);
    if (last_error == std::errc{} && last == end && out.first >= 1 && out.first <= out.last) return out;
  }
  throw input_error("--trace-steps: '" + text + "' is no first and last step, from 1 on and in this order, as in 2-4");
}

std::vector<std::size_t> parse_stage_layers(const std::string& text) {
  std::vector<std::size_t> out;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data();; ++at) {
    std::size_t layers = 0;
    const auto [rest, error] = std::from_chars(at, end, layers);
    if (error != std::errc{} || (rest != end && *rest != ','))
      throw input_error("--stage-layers '" + text + "': whole numbers of layers, one for each stage, as in 1,2,1");
    out.push_back(layers);
    if (rest == end) return out;
    at = rest;
  }
}

}  // namespace train_moe
