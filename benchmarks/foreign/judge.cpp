// Judges solutions with the validator of dsa-solver, whose library it is linked with.
//
//     judge PROBLEM SOLUTION [PROBLEM SOLUTION ...]
//
// Prints a line for each pair of files: the reuse cost and the sum of the peaks of all pools, or "rejected:" and why.

#include <exception>
#include <iostream>

#include "dsa/model/model.h"
#include "dsa/model/structured_problem.h"
#include "dsa/model/validator.h"

int main(int count, char** arguments) {
  for (int at = 1; at + 1 < count; at += 2) {
    try {
      const auto problem = dsa::ReadStructuredProblemJsonFile(arguments[at]);
      const auto document = dsa::ReadStructuredSolutionJsonFile(arguments[at + 1]);
      const auto solution = dsa::ValidateAndExtractStructuredSolution(problem, document);
      const auto value = dsa::EvaluateObjective(problem.problem, solution);
      std::cout << value.reuse_cost << ' ' << value.total_peak << '\n';
    } catch (const std::exception& error) {
      std::cout << "rejected: " << error.what() << '\n';
    }
  }
  return count % 2 ? 0 : 2;
}
