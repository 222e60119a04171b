// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/stream_rule.hpp"

#include <charconv>
#include <string_view>

#include "belay/core/error.hpp"

namespace train_moe {

belay::stream_choice parse_streams(const std::string& text) {
  using belay::stream_policy;
  if (text == "immediate") return {};
  if (text == "queued") return {stream_policy::queued, 0};
  const std::string_view adversarial = "adversarial";
  belay::stream_choice out{stream_policy::adversarial, 0};
  if (text == adversarial) return out;
  const char* const end = text.data() + text.size();
  if (text.starts_with(adversarial) && text[adversarial.size()] == ':') {
    const auto [last, error] = std::from_chars(text.data() + adversarial.size() + 1, end, out.seed);
    if (error == std::errc{} && last == end) return out;
  }
  throw belay::input_error("--streams: '" + text +
                           "' is none of immediate, queued, adversarial and adversarial:SEED, as in adversarial:7");
}

}  // namespace train_moe
