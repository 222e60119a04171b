// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// belay-checkpoint show|verify|diff|export: what a checkpoint holds, whether it is sound, in what two differ, and its
// values as files for others.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/train/checkpoint.hpp"
#include "tools/belay_checkpoint/checkpoint_list.hpp"
#include "tools/belay_checkpoint/diff.hpp"
#include "tools/belay_checkpoint/diff_text.hpp"
#include "tools/belay_checkpoint/export.hpp"
#include "tools/belay_checkpoint/show.hpp"
#include "tools/belay_checkpoint/verify.hpp"
#include "tools/belay_checkpoint/verify_text.hpp"

using namespace belay_checkpoint;

namespace {

// Exit codes.
constexpr int as_it_should_be = 0, damaged_or_different = 1, misused = 2;

struct arguments {
  std::string first, second;
  bool as_json = false;
};

void put(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw belay::file_error("standard output", 0, "cannot be written");
}
// ASCII alone: a terminal obeys none of it.
void put_json(const ordered_json& values) {
  put(values.dump(1, ' ', true, ordered_json::error_handler_t::replace) + "\n");
}
// Where in this program it was thrown is of no use to whoever runs it.
void complain(const std::exception& problem) {
  const auto* const of_file = dynamic_cast<const belay::file_error*>(&problem);
  const std::string what =
      of_file == nullptr
          ? belay::printable_what(problem)
          : belay::printable_what(belay::file_error(of_file->path(), of_file->offset(), of_file->message()));
  const std::size_t prefix = what.starts_with("belay: ") ? std::string_view("belay: ").size() : 0;
  std::fprintf(stderr, "belay-checkpoint: %s\n", what.c_str() + prefix);
}

int show(const arguments& given) {
  const std::vector<std::string> folders = checkpoints_at(given.first);
  std::vector<listed_checkpoint> list;
  int code = as_it_should_be;
  for (const std::string& folder : folders) {
    listed_checkpoint& each = list.emplace_back();
    each.folder = folder;
    try {
      each.content = belay::checkpoint_reader<>(folder).content();
    } catch (const belay::file_error& problem) {
      complain(problem);
      each.problem = problem.path() + ": " + problem.message();
      code = damaged_or_different;
    }
    if (&each != &list.front() && list[list.size() - 2].problem.empty()) {  // the newest's details alone are shown
      belay::manifest& before = list[list.size() - 2].content;
      before.tensors = {};
    }
  }
  const listed_checkpoint& newest = list.back();
  if (given.as_json) {
    ordered_json out{{"checkpoints", list_json(list)}};
    if (newest.problem.empty()) out["newest"] = details_json(newest.folder, newest.content);
    put_json(out);
  } else {
    if (list.size() > 1 || folders.front() != given.first) put(list_text(list) + "\n");
    if (newest.problem.empty()) put(details_text(newest.folder, newest.content));
  }
  return code;
}

int verify(const arguments& given) {
  ordered_json all = ordered_json::array();
  int code = as_it_should_be;
  for (const std::string& folder : checkpoints_at(given.first)) {
    const verdict found = verification::of(folder);
    if (!found.faults.empty()) code = damaged_or_different;
    if (given.as_json)
      all.push_back(json_of(found));
    else
      put(text_of(found));
  }
  if (given.as_json) put_json({{"sound", code == as_it_should_be}, {"checkpoints", std::move(all)}});
  return code;
}

int diff(const arguments& given) {
  const difference found = comparison::of(checkpoint_at(given.first), checkpoint_at(given.second));
  if (given.as_json)
    put_json(json_of(found));
  else
    put(text_of(found));
  return found.empty() ? as_it_should_be : damaged_or_different;
}

int write_export(const arguments& given) {
  const std::string from = checkpoint_at(given.first);
  const exported done = checkpoint_export::to(given.second, from);
  if (given.as_json)
    put_json({{"folder", done.folder}, {"from", from}, {"tensors", done.tensors}, {"bytes_read", done.bytes_read}});
  else
    put(belay::printable(done.folder) + ": " + counted(done.tensors, "tensor") + " of " + belay::printable(from) +
        ", " + std::to_string(done.bytes_read) + " bytes read\n");
  return as_it_should_be;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Shows, verifies, compares and exports checkpoints of Belay"};
  app.require_subcommand(1);
  arguments given;
  std::function<int(const arguments&)> chosen;
  const auto add = [&](const char* name, const char* what, int (*run)(const arguments&)) {
    CLI::App* const command = app.add_subcommand(name, what);
    command->add_option("PATH", given.first, "a checkpoint, runs/a/step-00000050, or a folder of them, runs/a")
        ->required();
    command->add_flag("--json", given.as_json, "for programs: the same as JSON");
    command->callback([&chosen, run] { chosen = run; });
    return command;
  };
  add("show", "what it holds; of a folder: which there are, and what the newest holds", show);
  add("verify", "reads all of it and names all that is wrong; of a folder: of each", verify);
  add("diff", "in what two differ, whatever meshes have written them", diff)
      ->add_option("OTHER", given.second, "another")
      ->required();
  add("export", "its values as model.safetensors; of train_moe with config.json", write_export)
      ->add_option("FOLDER", given.second, "is made")
      ->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? as_it_should_be : misused;
  }
  try {
    return chosen(given);
  } catch (const belay::input_error& problem) {
    complain(problem);
    return misused;
  } catch (const std::exception& problem) {
    complain(problem);
    return damaged_or_different;
  }
}
