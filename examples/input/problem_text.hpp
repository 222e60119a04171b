// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What went wrong, for whoever runs a program: about files and flags without the line of a header that has found it.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"

namespace input {

[[nodiscard]] inline std::string problem_text(const std::exception& problem) {
  const auto* const of_file = dynamic_cast<const belay::file_error*>(&problem);
  const auto* const of_input = dynamic_cast<const belay::input_error*>(&problem);
  std::string out = belay::printable_what(problem);
  if (of_file != nullptr)
    out = belay::printable_what(
        belay::file_error(of_file->path(), of_file->offset(), of_file->message(), {}, of_file->rank()));
  if (of_input != nullptr && of_input->at().line > 0)
    if (const std::string site = of_input->at().text() + ": "; out.starts_with(site)) out.erase(0, site.size());
  return out;
}

/// That text without the library's name before it, for a message that begins with a flag or a file.
[[nodiscard]] inline std::string problem_words(const std::exception& problem) {
  constexpr std::string_view library = "belay: ";
  std::string out = problem_text(problem);
  if (out.starts_with(library)) out.erase(0, library.size());
  return out;
}

}  // namespace input
