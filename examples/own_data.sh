# From two tables to predictions, and to nodes that came later. Run it where the tables are:
#   cd examples/own-data && bash ../own_data.sh
set -e

# first: from two tables to predictions in one command
unimp train packages.csv relations.csv --label section --out runs/first
# end

# start: look at the tables, write a recipe, check everything
unimp init packages.csv relations.csv
unimp check recipe.toml
# end

# train: train, and predict under your own ids
unimp train recipe.toml --out runs/packages
unimp predict runs/packages --probabilities --out predictions.csv
# end

# later: nodes and edges that came after training
unimp predict runs/packages --nodes new-packages.csv --edges new-relations.csv --out later.csv
# end
